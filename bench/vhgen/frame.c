#include "frame.h"

#include <rte_arp.h>
#include <rte_icmp.h>
#include <rte_ip.h>
#include <rte_tcp.h>
#include <rte_udp.h>
#include <string.h>

#define MAGIC 0x56484731u
#define PORT_FIRST 4096u
/* UDP and TCP both begin with the source port. */
#define SOURCE_PORT_OFFSET (sizeof(struct rte_ether_hdr) + sizeof(struct rte_ipv4_hdr))

uint32_t frame_smallest(bool tcp)
{
	return SOURCE_PORT_OFFSET + (tcp ? sizeof(struct rte_tcp_hdr) : sizeof(struct rte_udp_hdr)) +
	       sizeof(struct frame_stamp);
}

unsigned frame_segments(const struct frame_kind *kind)
{
	return (kind->size + FRAME_SEGMENT_MAX - 1) / FRAME_SEGMENT_MAX;
}

static void fill_transport(struct frame_kind *kind, struct rte_ipv4_hdr *ip)
{
	uint16_t bytes = kind->size - SOURCE_PORT_OFFSET;

	if (kind->echo) {
		struct rte_icmp_hdr *icmp = (void *)(ip + 1);

		icmp->icmp_type = RTE_IP_ICMP_ECHO_REQUEST;
		return;
	}
	if (!kind->mss) {
		struct rte_udp_hdr *udp = (void *)(ip + 1);

		udp->dst_port = rte_cpu_to_be_16(9);
		udp->dgram_len = rte_cpu_to_be_16(bytes); /* checksum 0: none, as RFC 768 allows over IPv4 */
		return;
	}
	struct rte_tcp_hdr *tcp = (void *)(ip + 1);
	tcp->dst_port = rte_cpu_to_be_16(9);
	tcp->data_off = sizeof(*tcp) / 4 << 4;
	tcp->tcp_flags = RTE_TCP_ACK_FLAG;
	tcp->rx_win = 0xffff;
	tcp->cksum = rte_ipv4_phdr_cksum(ip, 0); /* partial checksum over the whole GSO packet, as virtio wants it */
}

struct frame_kind frame_kind_new(struct frame_kind shape, struct rte_ether_addr from, struct rte_ether_addr to)
{
	struct frame_kind kind = shape;
	struct rte_ether_hdr *ether = (void *)kind.header;
	struct rte_ipv4_hdr *ip = (void *)(ether + 1);

	kind.header_bytes = frame_smallest(kind.mss != 0) - sizeof(struct frame_stamp);
	ether->dst_addr = to;
	ether->src_addr = from;
	ether->ether_type = rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4);
	ip->version_ihl = RTE_IPV4_VHL_DEF;
	ip->total_length = rte_cpu_to_be_16(kind.size - sizeof(*ether));
	ip->time_to_live = 64;
	ip->next_proto_id = kind.echo ? IPPROTO_ICMP : kind.mss ? IPPROTO_TCP : IPPROTO_UDP;
	ip->src_addr = rte_cpu_to_be_32(FRAME_ADDRESS_A);
	ip->dst_addr = rte_cpu_to_be_32(kind.echo ? FRAME_ADDRESS_HOST : FRAME_ADDRESS_B);
	ip->hdr_checksum = rte_ipv4_cksum(ip);
	fill_transport(&kind, ip);
	return kind;
}

static inline uint64_t pattern(uint32_t sequence, uint32_t offset)
{
	return ((uint64_t)sequence << 32 | offset) ^ 0x5bd1e9955bd1e995u;
}

/* First offset not below `offset` that begins a line of the frame; line 0 belongs to headers and stamp. */
static inline uint32_t next_line(uint32_t offset)
{
	return RTE_MAX(RTE_ALIGN_CEIL(offset, FRAME_LINE), FRAME_LINE);
}

static inline void write_lines(struct rte_mbuf *m, uint32_t sequence)
{
	uint32_t start = 0;

	for (; m; start += m->data_len, m = m->next) {
		char *data = rte_pktmbuf_mtod(m, char *);

		for (uint32_t o = next_line(start); o + 8 <= start + m->data_len; o += FRAME_LINE) {
			uint64_t word = pattern(sequence, o);
			memcpy(data + (o - start), &word, sizeof(word));
		}
	}
}

/* True if all pattern words are right. A word that two buffers share is not looked at. */
static inline bool lines_right(struct rte_mbuf *m, uint32_t sequence)
{
	uint64_t difference = 0;
	uint32_t start = 0;

	for (; m; start += m->data_len, m = m->next) {
		const char *data = rte_pktmbuf_mtod(m, const char *);

		for (uint32_t o = next_line(start); o + 8 <= start + m->data_len; o += FRAME_LINE) {
			uint64_t word;
			memcpy(&word, data + (o - start), sizeof(word));
			difference |= word ^ pattern(sequence, o);
		}
	}
	return difference == 0;
}

static inline void set_offload(const struct frame_kind *kind, struct rte_mbuf *m)
{
	m->l2_len = sizeof(struct rte_ether_hdr);
	m->l3_len = sizeof(struct rte_ipv4_hdr);
	m->l4_len = sizeof(struct rte_tcp_hdr);
	m->tso_segsz = kind->mss;
	m->ol_flags |= RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_TCP_CKSUM | RTE_MBUF_F_TX_IPV4;
}

/* An echo request's checksum covers its payload (RFC 792), which is in one buffer. */
static void seal_echo(const struct frame_kind *kind, uint8_t *data)
{
	struct rte_icmp_hdr *icmp = (void *)(data + SOURCE_PORT_OFFSET);

	icmp->icmp_cksum = (uint16_t)~rte_raw_cksum(icmp, kind->size - SOURCE_PORT_OFFSET);
}

void frame_write(const struct frame_kind *kind, struct rte_mbuf *m, uint32_t sequence, uint32_t flow)
{
	uint8_t *data = rte_pktmbuf_mtod(m, uint8_t *);
	uint16_t source_port = rte_cpu_to_be_16(PORT_FIRST + flow);
	struct frame_stamp stamp = { .magic = MAGIC, .sequence = sequence };
	uint32_t left = kind->size;

	m->pkt_len = kind->size;
	for (struct rte_mbuf *s = m; s; s = s->next) {
		s->data_len = RTE_MIN(left, FRAME_SEGMENT_MAX);
		left -= s->data_len;
	}
	memcpy(data, kind->header, kind->header_bytes);
	if (!kind->echo)
		memcpy(data + SOURCE_PORT_OFFSET, &source_port, sizeof(source_port));
	memcpy(data + kind->header_bytes, &stamp, sizeof(stamp));
	if (kind->echo)
		seal_echo(kind, data);
	if (kind->mss)
		set_offload(kind, m);
	if (kind->touch_all)
		write_lines(m, sequence);
}

enum frame_verdict frame_check(const struct frame_kind *kind, struct rte_mbuf *m, uint32_t *sequence)
{
	const uint8_t *data = rte_pktmbuf_mtod(m, const uint8_t *);
	struct frame_stamp stamp;

	if (m->data_len < kind->header_bytes + sizeof(stamp) || data[12] != kind->header[12] || data[13] != kind->header[13])
		return FRAME_FOREIGN;
	if (m->pkt_len != kind->size)
		return FRAME_CUT;
	memcpy(&stamp, data + kind->header_bytes, sizeof(stamp));
	if (stamp.magic != MAGIC)
		return FRAME_FOREIGN;
	*sequence = stamp.sequence;
	if (kind->touch_all && !lines_right(m, stamp.sequence))
		return FRAME_CORRUPT;
	return FRAME_GOOD;
}

void frame_write_arp(struct rte_mbuf *m, struct rte_ether_addr from, uint32_t address, uint32_t wanted)
{
	struct rte_ether_hdr *ether = rte_pktmbuf_mtod(m, struct rte_ether_hdr *);
	struct rte_arp_hdr *arp = (void *)(ether + 1);

	memset(ether, 0, 60);
	memset(&ether->dst_addr, 0xff, sizeof(ether->dst_addr));
	ether->src_addr = from;
	ether->ether_type = rte_cpu_to_be_16(RTE_ETHER_TYPE_ARP);
	arp->arp_hardware = rte_cpu_to_be_16(RTE_ARP_HRD_ETHER);
	arp->arp_protocol = rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4);
	arp->arp_hlen = RTE_ETHER_ADDR_LEN;
	arp->arp_plen = sizeof(uint32_t);
	arp->arp_opcode = rte_cpu_to_be_16(RTE_ARP_OP_REQUEST);
	arp->arp_data.arp_sha = from;
	arp->arp_data.arp_sip = rte_cpu_to_be_32(address);
	arp->arp_data.arp_tip = rte_cpu_to_be_32(wanted);
	m->data_len = m->pkt_len = 60;
}
