/* The two virtio-user ports, DPDK's own virtio driver over vhost-user. */
#ifndef VHGEN_PORTS_H
#define VHGEN_PORTS_H

#include <rte_ether.h>
#include <rte_mempool.h>

#include "options.h"

struct port {
	uint16_t id;
	struct rte_ether_addr mac;
	struct rte_mempool *tx_pool; /* buffers for what the program sends */
};

/* Starts DPDK and the ports that there are; prints what failed and exits with status 1. Without a port B, its address is the host's. */
void ports_start(const struct options *o, struct port *a, struct port *b);

void ports_stop(const struct options *o, const struct port *a, const struct port *b);

#endif
