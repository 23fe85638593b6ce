#include "ports.h"

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <stdio.h>
#include <stdlib.h>

#include "frame.h"

#define RX_ROOM 2048u /* bytes per receive buffer; longer frames take several (mergeable buffers) */
#define POOL_CACHE 256u

static const struct rte_ether_addr mac_a = { { 0x52, 0x54, 0x00, 0xbe, 0x00, 0x0a } };
static const struct rte_ether_addr mac_b = { { 0x52, 0x54, 0x00, 0xbe, 0x00, 0x0b } };

static void __attribute__((noreturn)) fail(const char *what, int error)
{
	fprintf(stderr, "vhgen: %s: %s\n", what, rte_strerror(error < 0 ? -error : error));
	exit(1);
}

/* Without in-order and packed rings, which QEMU does not offer to a guest either. */
static void device_argument(char *text, size_t room, const struct options *o, int index, const char *path)
{
	const struct rte_ether_addr *mac = index ? &mac_b : &mac_a;

	snprintf(text, room,
		 "--vdev=net_virtio_user%d,path=%s,mac=" RTE_ETHER_ADDR_PRT_FMT
		 ",queues=1,queue_size=%u,mrg_rxbuf=1,in_order=0,packed_vq=0,vectorized=0,server=%d",
		 index, path, RTE_ETHER_ADDR_BYTES(mac), o->queue_size, o->server);
}

/* `--in-memory`: anonymous hugepages, so a killed run leaves nothing in a hugetlbfs. */
static void start_eal(const struct options *o)
{
	char core[16], memory[16], device_a[512], device_b[512];
	char *arguments[] = { "vhgen", "-l", core, "-m", memory, "--in-memory", "--single-file-segments", "--no-pci",
			      "--no-telemetry", o->verbose ? "--log-level=pmd.net.virtio.*:debug" : "--log-level=warning",
			      device_a, o->port_b ? device_b : NULL, NULL };
	int count = RTE_DIM(arguments) - (o->port_b ? 1 : 2);

	snprintf(core, sizeof(core), "%u", o->core);
	snprintf(memory, sizeof(memory), "%u", o->memory_mb);
	device_argument(device_a, sizeof(device_a), o, 0, o->port_a);
	if (o->port_b)
		device_argument(device_b, sizeof(device_b), o, 1, o->port_b);
	if (rte_eal_init(count, arguments) < 0)
		fail("DPDK did not start (hugepages free? switch listening?)", rte_errno);
}

static struct rte_mempool *new_pool(const char *name, unsigned count, uint32_t room)
{
	uint32_t bytes = RTE_MIN(room + RTE_PKTMBUF_HEADROOM, (uint32_t)UINT16_MAX);
	struct rte_mempool *pool = rte_pktmbuf_pool_create(name, count, POOL_CACHE, 0, bytes, SOCKET_ID_ANY);

	if (!pool)
		fail("no memory for packet buffers (raise --memory)", rte_errno);
	return pool;
}

/* With indirect descriptors a ring slot holds a whole chain, so the pool counts frames, not buffers. */
static struct rte_mempool *new_tx_pool(const struct options *o, const char *name, bool sends_frames)
{
	uint32_t size = sends_frames ? RTE_MAX(o->size, 128u) : 128u;
	unsigned segments = (size + FRAME_SEGMENT_MAX - 1) / FRAME_SEGMENT_MAX;

	return new_pool(name, (o->queue_size + 4 * POOL_CACHE) * segments, RTE_MIN(size, FRAME_SEGMENT_MAX));
}

static void start_port(const struct options *o, struct port *port, const char *name, bool sends_frames)
{
	struct rte_eth_conf conf = { .rxmode = { .offloads = RTE_ETH_RX_OFFLOAD_SCATTER },
				     .txmode = { .offloads = RTE_ETH_TX_OFFLOAD_MULTI_SEGS } };
	unsigned queue = o->queue_size;
	char pool_name[32];
	int error;

	if (o->mss) {
		conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_TCP_LRO | RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
		conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_TCP_TSO | RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
	}
	if ((error = rte_eth_dev_get_port_by_name(name, &port->id)) ||
	    (error = rte_eth_dev_configure(port->id, 1, 1, &conf)))
		fail(name, error);
	snprintf(pool_name, sizeof(pool_name), "rx%u", port->id);
	struct rte_mempool *rx_pool = new_pool(pool_name, 2 * queue + 4 * POOL_CACHE, RX_ROOM);
	snprintf(pool_name, sizeof(pool_name), "tx%u", port->id);
	port->tx_pool = new_tx_pool(o, pool_name, sends_frames);
	if ((error = rte_eth_rx_queue_setup(port->id, 0, queue, SOCKET_ID_ANY, NULL, rx_pool)) ||
	    (error = rte_eth_tx_queue_setup(port->id, 0, queue, SOCKET_ID_ANY, NULL)) ||
	    (error = rte_eth_dev_start(port->id)) || (error = rte_eth_macaddr_get(port->id, &port->mac)))
		fail(name, error);
}

void ports_start(const struct options *o, struct port *a, struct port *b)
{
	start_eal(o);
	start_port(o, a, "net_virtio_user0", true);
	if (o->port_b)
		start_port(o, b, "net_virtio_user1", false);
	else
		b->mac = mac_b;
}

static void stop_port(const struct port *port)
{
	rte_eth_dev_stop(port->id);
	rte_eth_dev_close(port->id);
}

void ports_stop(const struct options *o, const struct port *a, const struct port *b)
{
	stop_port(a);
	if (o->port_b)
		stop_port(b);
	rte_eal_cleanup();
}
