/* Command line of vhgen. */
#ifndef VHGEN_OPTIONS_H
#define VHGEN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct options {
	const char *port_a;   /* vhost-user socket of the sending port */
	const char *port_b;   /* vhost-user socket of the receiving port; NULL: frames go to the host */
	const char *counter;  /* file that counts what the host has received */
	bool echo;            /* ICMP echo requests to the host, whose replies port A receives */
	bool server;          /* create the sockets and wait for the switch, instead of connecting */
	unsigned core;        /* CPU that sends and receives */
	uint32_t size;        /* frame bytes, Ethernet header included, FCS not */
	uint32_t flows;       /* distinct UDP or TCP source ports, visited round robin */
	uint16_t mss;         /* 0: UDP frames; else GSO packets to be cut at this many payload bytes */
	bool touch_all;       /* write and read every cache line of a frame, not its headers alone */
	uint32_t window;      /* frames in flight at most; 0: as many as the ring takes */
	uint32_t burst;       /* frames that leave at once and are waited for; 0: the ring is kept full */
	uint32_t gap_us;      /* pause after such a burst */
	unsigned queue_size;  /* descriptors per virtqueue */
	unsigned memory_mb;   /* hugepage memory */
	bool verbose;         /* DPDK's debug log of the vhost-user negotiation on stderr */
};

/* Parses argv; prints what is wrong and exits with status 2 on a bad command line. */
struct options options_parse(int argc, char **argv);

#endif
