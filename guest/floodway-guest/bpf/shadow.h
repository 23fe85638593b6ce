/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The shadow window: the congestion window that this sender would have on its own.
 *
 * Theory of operation. The kernel lets a `cong_control` replace all of its own window handling; so everything that the
 * standards ask of a sender happens here, whether the flow is online or not:
 *  - slow start and congestion avoidance by segments delivered (RFC 5681; RFC 3465 without its limit, as Linux does),
 *    only while the window is what limits the sender (RFC 7661);
 *  - at a loss or congestion mark the kernel asks for `ssthresh`: from then on the window follows proportional rate
 *    reduction (RFC 9937) down to it, and is set to it when recovery ends;
 *  - at a retransmission timeout one segment, then slow start up to `ssthresh`;
 *  - a loss that was none is undone: window and threshold are what they were before;
 *  - after an idle time longer than the RTO the window is halved per RTO, down to the restart window (RFC 2861 as Linux
 *    does), unless net.ipv4.tcp_slow_start_after_idle is off.
 *
 * Online, the sender's own flight says nothing of the network, as the switch holds most of it:
 *  - PRR is not possible; a cut takes effect at once;
 *  - growth is validated against pipeACK (RFC 7661, section 4.2): what was delivered per smoothed RTT, scaled down to the
 *    shortest RTT, because the time that bytes wait in the switch is part of every other. The window grows while it is
 *    below twice that. So a flow that goes offline does so with a window that the path has just carried.
 *
 * Invariants: the window is at least 1 and `ssthresh` at least 2 segments; neither depends on what a notice says beyond
 * online or not.
 */
#ifndef FLOODWAY_SHADOW_H
#define FLOODWAY_SHADOW_H

#include "config.h"
#include "cubic.h"

/* RFC 6928. */
#define TCP_INIT_CWND 10
/* Beyond this many segments the kernel's own arithmetic (buffer sizes) would overflow. */
#define MAX_CWND (1U << 15)

/* Lives in icsk_ca_priv, which has room for 104 bytes. */
struct shadow {
	__u64 name; /* what notices call the flow */
	__u32 cwnd;
	__u32 ssthresh;
	__u32 cwnd_cnt; /* segments delivered since the window last grew, in congestion avoidance */
	__u32 prior_cwnd; /* before the latest cut */
	__u32 prior_ssthresh;
	__u32 prr_delivered;
	__u32 delivered; /* the socket's counters at the latest ACK */
	__u32 lost;
	__u32 snd_una;
	__u32 round_delivered; /* `delivered` when the round of pipeACK began */
	__u32 round_start_us;
	__u32 pipe_ack; /* segments; 0 is not known yet */
	__u8 online;
	__u8 reducing; /* PRR is under way */
	struct cubic cubic;
};

_Static_assert(sizeof(struct shadow) <= 104, "must fit icsk_ca_priv");

static __always_inline struct shadow *shadow_of(struct sock *sk)
{
	return (struct shadow *)inet_csk(sk)->icsk_ca_priv;
}

static __always_inline __u32 restart_window(const struct shadow *s)
{
	return min32(config.initial_window ? config.initial_window : TCP_INIT_CWND, s->cwnd);
}

static __always_inline bool in_slow_start(const struct shadow *s)
{
	return s->cwnd < s->ssthresh;
}

static __always_inline void shadow_init(struct sock *sk, __u64 now_ns)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct shadow *s = shadow_of(sk);

	/* The kernel starts with 1 after a lost SYN. A connection that chose us in its middle keeps its window. */
	s->cwnd = tp->snd_cwnd;
	if (config.initial_window && tp->data_segs_out == 0 && s->cwnd > 1)
		s->cwnd = config.initial_window;
	s->cwnd = max32(s->cwnd, 1);
	s->ssthresh = max32(tp->snd_ssthresh, 2);
	/* The algorithm before was reducing the window step by step: that ends with it, so it is reduced at once. */
	if (inet_csk(sk)->icsk_ca_state == TCP_CA_CWR ||
	    inet_csk(sk)->icsk_ca_state == TCP_CA_Recovery)
		s->cwnd = min32(s->cwnd, s->ssthresh);
	s->cwnd_cnt = 0;
	s->prior_cwnd = s->cwnd;
	s->prior_ssthresh = s->ssthresh;
	s->prr_delivered = 0;
	s->delivered = tp->delivered;
	s->lost = tp->lost;
	s->snd_una = tp->snd_una;
	s->round_delivered = tp->delivered;
	s->round_start_us = now_ns / 1000;
	s->pipe_ack = 0;
	s->online = 0;
	s->reducing = 0;
	cubic_init(&s->cubic);
}

/* The new threshold after a loss or mark, which the kernel asks for once per window of data. */
static __always_inline __u32 shadow_ssthresh(struct sock *sk)
{
	struct shadow *s = shadow_of(sk);

	s->prior_cwnd = s->cwnd;
	s->prior_ssthresh = s->ssthresh;
	s->prr_delivered = 0;
	s->cwnd_cnt = 0;
	s->ssthresh = max32(config.cubic ? cubic_ssthresh(&s->cubic, s->cwnd) : s->cwnd / 2, 2);
	s->reducing = !s->online;
	if (s->online)
		s->cwnd = min32(s->cwnd, s->ssthresh);
	return s->ssthresh;
}

static __always_inline void shadow_undo(struct sock *sk)
{
	struct shadow *s = shadow_of(sk);

	s->cwnd = max32(s->cwnd, s->prior_cwnd);
	s->ssthresh = max32(s->ssthresh, s->prior_ssthresh);
	s->reducing = 0;
}

/* Called before `icsk_ca_state` changes. */
static __always_inline void shadow_set_state(struct sock *sk, __u8 new_state)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct shadow *s = shadow_of(sk);
	__u32 cwnd = tp->snd_cwnd;

	if (new_state == TCP_CA_Loss) {
		/* At a timeout the kernel has just set its window to the flight (all is lost: 0) plus one segment, and at a
		 * change of the path's MTU, which is no congestion, left it alone. Follow it. */
		if (s->online)
			cwnd -= min32(cwnd, tcp_packets_in_flight(tp));
		if (cwnd < s->cwnd) {
			s->cwnd = max32(cwnd, 1);
			cubic_timeout(&s->cubic);
		}
		s->cwnd_cnt = 0;
		s->reducing = 0;
	} else if (new_state <= TCP_CA_Disorder && s->reducing) {
		s->cwnd = s->ssthresh;
		s->reducing = 0;
	}
}

/* RFC 9937, section 6.2. */
static __always_inline void shadow_reduce(struct tcp_sock *tp, struct shadow *s, __u32 acked,
					  bool safe_ack)
{
	__u32 in_flight = tcp_packets_in_flight(tp);
	__u32 prr_out = tp->prr_out;
	__u64 target;
	__u32 limit;
	__s32 send;

	s->prr_delivered += acked;
	if (in_flight > s->ssthresh) {
		target = (__u64)s->prr_delivered * s->ssthresh + s->prior_cwnd - 1;
		send = (__s32)(target / s->prior_cwnd) - (__s32)prr_out;
	} else {
		limit = s->prr_delivered > prr_out ? s->prr_delivered - prr_out : 0;
		limit = max32(limit, acked) + (safe_ack ? 1 : 0);
		send = min32(s->ssthresh - in_flight, limit);
	}
	/* The fast retransmission itself goes out at once. */
	if (send < 1)
		send = prr_out ? 0 : 1;
	/* A flow that has just gone offline may have far more in flight than its own window ever was. */
	s->cwnd = max32(min32(in_flight + send, s->prior_cwnd), 1);
}

/* RFC 7661, section 4.2: the volume acknowledged per round trip, without the time spent in the switch. */
static __always_inline void measure_pipe(struct tcp_sock *tp, struct shadow *s, __u64 now_ns)
{
	__u32 elapsed_us = (__u32)(now_ns / 1000) - s->round_start_us;
	__u32 min_rtt_us = tp->rtt_min.s[0].v;
	__u64 delivered = s->delivered - s->round_delivered;

	if (elapsed_us < tp->srtt_us >> 3 || elapsed_us == 0)
		return;
	if (min_rtt_us < elapsed_us)
		delivered = delivered * min_rtt_us / elapsed_us;
	s->pipe_ack = max32(delivered, 1);
	s->round_delivered = s->delivered;
	s->round_start_us = now_ns / 1000;
}

static __always_inline bool is_cwnd_limited(struct tcp_sock *tp, const struct shadow *s)
{
	if (s->online)
		return s->pipe_ack == 0 || s->cwnd / 2 < s->pipe_ack;
	if (BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited))
		return true;
	return in_slow_start(s) && s->cwnd / 2 < tp->max_packets_out;
}

static __always_inline void shadow_grow(struct tcp_sock *tp, struct shadow *s, __u32 acked,
					__u64 now_ns)
{
	__u32 step;

	if (!is_cwnd_limited(tp, s))
		return;
	if (in_slow_start(s)) {
		step = min32(acked, s->ssthresh - s->cwnd);
		s->cwnd += step;
		acked -= step;
	}
	if (acked && config.cubic) {
		s->cwnd += cubic_grow(&s->cubic, s->cwnd, acked, tp->srtt_us >> 3, now_ns);
	} else if (acked) {
		s->cwnd_cnt += acked;
		step = s->cwnd_cnt / s->cwnd;
		s->cwnd_cnt -= step * s->cwnd;
		s->cwnd += step;
	}
	s->cwnd = min32(s->cwnd, MAX_CWND);
}

/* On each ACK. */
static __always_inline void shadow_acked(struct sock *sk, __u64 now_ns)
{
	__u8 state = BPF_CORE_READ_BITFIELD(inet_csk(sk), icsk_ca_state);
	struct tcp_sock *tp = tcp_sk(sk);
	struct shadow *s = shadow_of(sk);
	__u32 acked = tp->delivered - s->delivered;
	bool safe_ack = tp->snd_una != s->snd_una && tp->lost == s->lost;

	s->delivered = tp->delivered;
	s->lost = tp->lost;
	s->snd_una = tp->snd_una;
	if (acked == 0)
		return;
	if (s->online)
		measure_pipe(tp, s, now_ns);
	if (state != TCP_CA_CWR && state != TCP_CA_Recovery)
		shadow_grow(tp, s, acked, now_ns);
	else if (s->reducing)
		shadow_reduce(tp, s, acked, safe_ack);
}

/* Nothing was in flight and data is about to go out. */
static __always_inline void shadow_restart(struct sock *sk, __u64 now_ns)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct shadow *s = shadow_of(sk);
	__u32 rto = max32(inet_csk(sk)->icsk_rto, 1);
	__s32 idle = (__u32)bpf_jiffies64() - tp->lsndtime;
	__u32 restart = restart_window(s);

	s->round_delivered = s->delivered;
	s->round_start_us = now_ns / 1000;
	cubic_idle(&s->cubic, now_ns);
	if (idle <= (__s32)rto || !sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_slow_start_after_idle)
		return;
	s->ssthresh = max32(s->ssthresh, s->cwnd / 2 + s->cwnd / 4);
	for (int i = 0; i < 16; i++) {
		idle -= rto;
		if (idle <= 0 || s->cwnd <= restart)
			break;
		s->cwnd /= 2;
	}
	s->cwnd = max32(s->cwnd, restart);
}

#endif
