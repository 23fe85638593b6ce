/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the programs read of the kernel's own structures, and nothing more.
 *
 * Every access is relocated when the programs are loaded (CO-RE): only names and types matter here, not order
 * or offsets. Fields that sit in anonymous members of the kernel's structures are found all the same.
 */
#ifndef FLOODWAY_KERNEL_H
#define FLOODWAY_KERNEL_H

#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "types.h"

#define AF_INET 2
#define AF_INET6 10

/* enum tcp_ca_state */
#define TCP_CA_Disorder 1
#define TCP_CA_CWR 2
#define TCP_CA_Recovery 3
#define TCP_CA_Loss 4
/* enum tcp_ca_event */
#define CA_EVENT_TX_START 0
/* include/net/tcp.h */
#define TCP_INFINITE_SSTHRESH 0x7fffffff
#define TCP_CA_NAME_MAX 16

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
};

struct netns_ipv4 {
	__u8 sysctl_tcp_min_tso_segs;
	__u8 sysctl_tcp_slow_start_after_idle;
};

struct net {
	struct netns_ipv4 ipv4;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
};

struct inet_sock {
	struct sock sk;
	__be16 inet_sport;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	__u32 icsk_rto;
	__u8 icsk_ca_state : 5;
	__u64 icsk_ca_priv[13];
};

struct minmax_sample {
	__u32 t;
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 data_segs_out;
	__u32 snd_una;
	__u32 lsndtime;
	__u32 mss_cache;
	__u8 is_cwnd_limited : 1;
	__u32 srtt_us;
	struct minmax rtt_min;
	__u32 packets_out;
	__u32 retrans_out;
	__u32 max_packets_out;
	__u32 snd_ssthresh;
	__u32 snd_cwnd;
	__u32 snd_cwnd_clamp;
	__u32 prr_out;
	__u32 delivered;
	__u32 lost;
	__u32 lost_out;
	__u32 sacked_out;
};

/* What an iterator over TCP sockets is called with. */
struct bpf_iter__tcp {
	struct sock_common *sk_common;
};

/* The members that are filled in. Signatures do not matter to the kernel: programs take what they read from
 * the argument array, which is how one `cong_control` serves both of its signatures (before and since 6.10). */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, int event);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*cong_control)(struct sock *sk);
	__u32 (*min_tso_segs)(struct sock *sk);
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	char name[TCP_CA_NAME_MAX];
};

#pragma clang attribute pop

static __always_inline struct inet_connection_sock *inet_csk(struct sock *sk)
{
	return (struct inet_connection_sock *)sk;
}

static __always_inline struct tcp_sock *tcp_sk(struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

/* Segments that the kernel takes to be in the network (RFC 6675's pipe). */
static __always_inline __u32 tcp_packets_in_flight(struct tcp_sock *tp)
{
	return tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
}

#endif
