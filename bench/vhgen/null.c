/*
 * vhnull: a vhost-user switch of two ports that returns descriptors and copies nothing but headers. What vhgen reaches
 * with it is about vhgen's own ceiling, and no bound: where a cache line takes long between the two cores, real switches
 * have been some percent faster.
 *
 * A chain of one port's transmit ring is returned, and as many buffers of the other port's receive ring as its frame
 * takes are returned with its length. The first HEADERS bytes are copied, so that vhgen finds its stamp and knows the
 * frame; the bytes behind them are what an earlier frame left there, or nothing ever wrote.
 *
 * The rings are split rings, polled. Both ports' clients are the same process, trusted here: nothing is checked.
 */
#include <pthread.h>
#include <rte_eal.h>
#include <rte_vhost.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>

#define PORTS 2
#define BURST 32u
#define ROUNDS 256u   /* between looks at what the vhost library's thread wants */
#define HEADERS 128u  /* virtio-net header, headers of the frame, stamp */
#define RECEIVE 0     /* the guest's receive queue, as virtio numbers them */
#define TRANSMIT 1

struct ring {
	struct rte_vhost_vring vring;
	uint16_t next_avail, next_used;
};

struct port {
	const char *socket;
	int device;                     /* of the vhost library; -1: no client */
	struct rte_vhost_memory *memory;
	struct ring rings[2];
};

static struct port ports[PORTS] = { { .device = -1 }, { .device = -1 } };
/* Held while rings are worked on, and while they come and go. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static volatile sig_atomic_t stopped;

static void on_signal(int signal)
{
	(void)signal;
	stopped = 1;
}

static void __attribute__((noreturn)) fail(const char *what)
{
	fprintf(stderr, "vhnull: %s\n", what);
	exit(1);
}

static struct port *port_of(int device)
{
	char socket[256];

	if (rte_vhost_get_ifname(device, socket, sizeof(socket)) == 0)
		for (unsigned i = 0; i < PORTS; i++)
			if (strcmp(socket, ports[i].socket) == 0)
				return &ports[i];
	return NULL;
}

static bool open_ring(struct port *port, int device, unsigned index)
{
	struct ring *ring = &port->rings[index];

	if (rte_vhost_get_vhost_vring(device, index, &ring->vring) ||
	    rte_vhost_get_vring_base(device, index, &ring->next_avail, &ring->next_used))
		return false;
	rte_vhost_enable_guest_notification(device, index, 0);
	return true;
}

static int on_new_device(int device)
{
	struct port *port = port_of(device);
	int error = -1;

	pthread_mutex_lock(&lock);
	if (port && rte_vhost_get_mem_table(device, &port->memory) == 0 && open_ring(port, device, RECEIVE) &&
	    open_ring(port, device, TRANSMIT)) {
		port->device = device;
		error = 0;
	}
	pthread_mutex_unlock(&lock);
	return error;
}

static void on_destroyed_device(int device)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < PORTS; i++) {
		struct port *port = &ports[i];

		if (port->device != device)
			continue;
		for (unsigned q = 0; q < 2; q++)
			rte_vhost_set_vring_base(device, q, port->rings[q].next_avail, port->rings[q].next_used);
		free(port->memory);
		port->memory = NULL;
		port->device = -1;
	}
	pthread_mutex_unlock(&lock);
}

static const struct rte_vhost_device_ops events = {
	.new_device = on_new_device,
	.destroy_device = on_destroyed_device,
};

static inline void *address(const struct port *port, uint64_t guest, uint64_t length)
{
	return (void *)(uintptr_t)rte_vhost_va_from_guest_pa(port->memory, guest, &length);
}

/* Bytes of the chain `head`, and in `start` the first HEADERS of them. */
static uint32_t read_chain(const struct port *port, uint16_t head, uint8_t start[HEADERS])
{
	const struct vring_desc *table = port->rings[TRANSMIT].vring.desc, *d = &table[head];
	uint32_t bytes = 0;

	if (d->flags & VRING_DESC_F_INDIRECT) {
		table = address(port, d->addr, d->len);
		d = table;
	}
	for (;; d = &table[d->next]) {
		if (bytes < HEADERS)
			memcpy(start + bytes, address(port, d->addr, d->len), RTE_MIN(d->len, HEADERS - bytes));
		bytes += d->len;
		if (!(d->flags & VRING_DESC_F_NEXT))
			return bytes;
	}
}

static inline void put_used(struct ring *ring, uint16_t head, uint32_t bytes)
{
	struct vring_used_elem *used = &ring->vring.used->ring[ring->next_used++ & (ring->vring.size - 1)];

	used->id = head;
	used->len = bytes;
}

static inline void publish(struct ring *ring)
{
	__atomic_store_n(&ring->vring.used->idx, ring->next_used, __ATOMIC_RELEASE);
}

/* Available buffers that are left. */
static inline uint16_t available(const struct ring *ring)
{
	return __atomic_load_n(&ring->vring.avail->idx, __ATOMIC_ACQUIRE) - ring->next_avail;
}

static inline uint16_t head_at(const struct ring *ring, uint16_t position)
{
	return ring->vring.avail->ring[position & (ring->vring.size - 1)];
}

/* Receive buffers for a frame of `bytes`, its virtio-net header included; 0 if there are not as many. Each is one descriptor. */
static uint16_t buffers_for(const struct ring *ring, uint32_t bytes)
{
	uint16_t left = available(ring);

	for (uint16_t n = 0; n < left; n++) {
		uint32_t room = ring->vring.desc[head_at(ring, ring->next_avail + n)].len;

		if (room >= bytes)
			return n + 1;
		bytes -= room;
	}
	return 0;
}

static void deliver(struct port *to, uint32_t bytes, uint16_t buffers, uint8_t start[HEADERS])
{
	struct ring *ring = &to->rings[RECEIVE];
	struct virtio_net_hdr_mrg_rxbuf *header = (void *)start;

	header->num_buffers = buffers;
	for (uint16_t n = 0; n < buffers; n++) {
		uint16_t head = head_at(ring, ring->next_avail++);
		const struct vring_desc *d = &ring->vring.desc[head];
		uint32_t length = RTE_MIN(bytes, d->len);

		if (n == 0)
			memcpy(address(to, d->addr, d->len), start, RTE_MIN(length, HEADERS));
		bytes -= length;
		put_used(ring, head, length);
	}
}

/* Moves up to a burst from one port to the other; a frame that finds no room waits in its ring. */
static void forward(struct port *from, struct port *to)
{
	struct ring *ring = &from->rings[TRANSMIT];
	uint16_t count = RTE_MIN(available(ring), BURST), n;

	for (n = 0; n < count; n++) {
		uint8_t start[HEADERS];
		uint16_t head = head_at(ring, ring->next_avail);
		uint32_t bytes = read_chain(from, head, start);
		uint16_t buffers = buffers_for(&to->rings[RECEIVE], bytes);

		if (!buffers)
			break;
		deliver(to, bytes, buffers, start);
		put_used(ring, head, 0);
		ring->next_avail++;
	}
	if (n > 0) {
		publish(&to->rings[RECEIVE]);
		publish(ring);
	}
}

static void start_eal(const char *program, const char *core)
{
	const char *arguments[] = { program, "-l", core, "-m", "64", "--no-huge", "--no-pci",
				    "--no-telemetry", "--log-level=warning", NULL };

	if (rte_eal_init(RTE_DIM(arguments) - 1, (char **)arguments) < 0)
		fail("DPDK did not start");
}

static void register_port(struct port *port, bool tso)
{
	uint64_t features = 1ULL << VIRTIO_F_VERSION_1 | 1ULL << VIRTIO_NET_F_MRG_RXBUF |
			    1ULL << VIRTIO_RING_F_INDIRECT_DESC | 1ULL << VHOST_USER_F_PROTOCOL_FEATURES;

	if (tso)
		features |= 1ULL << VIRTIO_NET_F_CSUM | 1ULL << VIRTIO_NET_F_GUEST_CSUM |
			    1ULL << VIRTIO_NET_F_HOST_TSO4 | 1ULL << VIRTIO_NET_F_HOST_TSO6 |
			    1ULL << VIRTIO_NET_F_GUEST_TSO4 | 1ULL << VIRTIO_NET_F_GUEST_TSO6;
	if (rte_vhost_driver_register(port->socket, RTE_VHOST_USER_CLIENT) ||
	    rte_vhost_driver_set_features(port->socket, features) ||
	    rte_vhost_driver_callback_register(port->socket, &events) || rte_vhost_driver_start(port->socket))
		fail(port->socket);
}

int main(int argc, char **argv)
{
	if (argc < 4 || argc > 5 || (argc == 5 && strcmp(argv[4], "--tso")))
		fail("usage: vhnull CORE SOCKET_A SOCKET_B [--tso]");
	start_eal(argv[0], argv[1]);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	for (unsigned i = 0; i < PORTS; i++)
		ports[i].socket = argv[2 + i];
	for (unsigned i = 0; i < PORTS; i++)
		register_port(&ports[i], argc == 5);
	while (!stopped) {
		pthread_mutex_lock(&lock);
		for (unsigned i = 0; i < ROUNDS && ports[0].device >= 0 && ports[1].device >= 0; i++) {
			forward(&ports[0], &ports[1]);
			forward(&ports[1], &ports[0]);
		}
		pthread_mutex_unlock(&lock);
	}
	return 0;
}
