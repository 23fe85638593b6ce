/*
 * The frames that vhgen sends, and what it checks when they come back.
 *
 * Every frame is Ethernet, IPv4 and UDP (or TCP for GSO packets), complete with the checksums that a switch may
 * verify; or an ICMP echo request, whose reply has all of it but the headers. Behind the headers comes a stamp: a magic word and a sequence number that counts frames, which gives loss
 * and reordering. With `touch_all`, one word in each further 64-byte line holds a pattern made of the sequence number
 * and the offset, so that a frame delivered with the wrong bytes is found as well.
 */
#ifndef VHGEN_FRAME_H
#define VHGEN_FRAME_H

#include <rte_ether.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <stdbool.h>
#include <stdint.h>

#define FRAME_MAX 65549u        /* 14-byte Ethernet header and the largest IPv4 packet */
#define FRAME_LINE 64u
#define FRAME_ADDRESS_A RTE_IPV4(198, 18, 0, 1) /* RFC 2544: addresses for benchmarks */
#define FRAME_ADDRESS_B RTE_IPV4(198, 18, 0, 2)
#define FRAME_ADDRESS_HOST RTE_IPV4(198, 18, 0, 3) /* answers ARP and ICMP echo requests */
#define FRAME_SEGMENT_MAX 32768u /* larger frames are sent as a chain, as a guest's fragments are */

struct frame_kind {
	uint32_t size;
	uint32_t flows;
	uint16_t mss;
	bool touch_all;
	bool echo;                      /* ICMP echo requests to FRAME_ADDRESS_HOST */
	uint16_t header_bytes;          /* Ethernet to transport, stamp not included */
	uint8_t header[64];             /* template of them */
};

struct frame_stamp {
	uint32_t magic;
	uint32_t sequence;
} __rte_packed;

enum frame_verdict { FRAME_GOOD, FRAME_FOREIGN, FRAME_CUT, FRAME_CORRUPT };

/* Shortest frame that has room for headers and stamp. */
uint32_t frame_smallest(bool tcp);

/* `shape` has all but the headers, which are made for it. */
struct frame_kind frame_kind_new(struct frame_kind shape, struct rte_ether_addr from, struct rte_ether_addr to);

/* Buffers of FRAME_SEGMENT_MAX that one frame takes. */
unsigned frame_segments(const struct frame_kind *kind);

/* Fills the chain of buffers `m` (as many as frame_segments()) as frame number `sequence`. */
void frame_write(const struct frame_kind *kind, struct rte_mbuf *m, uint32_t sequence, uint32_t flow);

/* Classifies a received frame; for FRAME_GOOD and FRAME_CORRUPT, `sequence` is set. FRAME_CUT: ours, wrong length. */
enum frame_verdict frame_check(const struct frame_kind *kind, struct rte_mbuf *m, uint32_t *sequence);

/*
 * Fills `m` as a broadcast ARP request of `from` and its IPv4 address for the address `wanted`. For its own it is an
 * announcement (RFC 5227), from which a switch learns the port.
 */
void frame_write_arp(struct rte_mbuf *m, struct rte_ether_addr from, uint32_t address, uint32_t wanted);

#endif
