// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The guest's half of transmit offload: a congestion control, readers of the switch's notices and of names in SYN-ACKs, and an iterator that gives the
 * congestion control to connections that are older than it.
 *
 * Theory of operation. A flow is online while the switch holds it back (notices.h). Then the window is larger than anything the
 * receive window allows: the switch writes its grant there, and that binds. All the while, a shadow window (shadow.h) is
 * kept as the sender would have it on its own; it is the window of a flow that is offline.
 *
 * States: offline and online, looked up anew at each event: an ACK (`cong_control`, which the kernel calls in place of its
 * own reduction, idle restart and pacing), the first segment after silence (`cwnd_event`), and each time the socket is
 * about to send (`min_tso_segs`, which the kernel asks before it looks at the window). While nothing is in flight the
 * window is the restart window whatever the state: the first segment goes out under it, brings an event, and with it the
 * right window for the rest of the same write. So an idle guest that was moved away floods nobody.
 *
 * Invariants: without a heartbeat younger than its lifetime nothing is sent under a window larger than the shadow window;
 * pacing and segment size offline are those of the kernel's own algorithms.
 */
#include "config.h"
#include "names.h"
#include "notices.h"
#include "older.h"
#include "reader.h"
#include "shadow.h"

/* struct_ops wants a licence that is compatible with the GPL. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Never binds: 46 MB at an MSS of 1448. Larger would overflow the kernel's send buffer arithmetic
 * (tcp_sndbuf_expand computes 2 * snd_cwnd * bytes per segment as an int). */
#define ONLINE_CWND MAX_CWND

#define USEC_PER_SEC 1000000ULL

/* Whether the state has changed. */
static __always_inline bool look_up_state(struct sock *sk, __u64 now_ns)
{
	struct shadow *s = shadow_of(sk);
	bool online = is_managed(s->name, now_ns);

	if (online == s->online)
		return false;
	s->online = online;
	if (online) {
		/* The flight no longer tells what PRR needs. */
		if (s->reducing)
			s->cwnd = s->ssthresh;
		s->reducing = 0;
		s->pipe_ack = 0;
		s->round_delivered = s->delivered;
		s->round_start_us = now_ns / 1000;
	}
	count(online ? COUNTER_FLOW_ONLINE : COUNTER_FLOW_OFFLINE);
	return true;
}

/* As the kernel computes it for algorithms that leave it to it (tcp_update_pacing_rate, with the default ratios). It
 * is also what sizes GSO packets and the queue below the socket when nothing paces. */
static __always_inline void set_pacing_rate(struct sock *sk, const struct shadow *s)
{
	struct tcp_sock *tp = tcp_sk(sk);
	unsigned long max = sk->sk_max_pacing_rate;
	__u64 rate;

	if (s->online || tp->srtt_us == 0) {
		sk->sk_pacing_rate = max;
		return;
	}
	rate = (__u64)tp->mss_cache * max32(s->cwnd, tp->packets_out);
	/* srtt_us counts in eighths of a microsecond. */
	rate = rate * (s->cwnd < s->ssthresh / 2 ? 200 : 120) * (USEC_PER_SEC / 100 * 8) /
	       tp->srtt_us;
	sk->sk_pacing_rate = rate < max ? rate : max;
}

static __always_inline void set_window(struct sock *sk, bool idle)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct shadow *s = shadow_of(sk);
	__u32 cwnd = s->online ? ONLINE_CWND : s->cwnd;

	if (idle)
		cwnd = restart_window(s);
	tp->snd_cwnd = min32(cwnd, tp->snd_cwnd_clamp);
	tp->snd_ssthresh = s->ssthresh;
	set_pacing_rate(sk, s);
}

SEC("struct_ops")
void BPF_PROG(floodway_init, struct sock *sk)
{
	__u64 now_ns = bpf_ktime_get_ns();

	shadow_init(sk, now_ns);
	shadow_of(sk)->name = name_of(sk);
	/* A flow that is named before its handshake ends starts with a full send buffer: the kernel sizes it next. */
	look_up_state(sk, now_ns);
	set_window(sk, false);
}

SEC("struct_ops")
void BPF_PROG(floodway_release, struct sock *sk)
{
	/* The next connection with these ports is another flow. */
	forget(shadow_of(sk)->name);
}

SEC("struct_ops")
__u32 BPF_PROG(floodway_ssthresh, struct sock *sk)
{
	return shadow_ssthresh(sk);
}

SEC("struct_ops")
void BPF_PROG(floodway_set_state, struct sock *sk, __u8 new_state)
{
	shadow_set_state(sk, new_state);
}

SEC("struct_ops")
__u32 BPF_PROG(floodway_undo_cwnd, struct sock *sk)
{
	struct shadow *s = shadow_of(sk);

	shadow_undo(sk);
	return s->online ? ONLINE_CWND : s->cwnd;
}

SEC("struct_ops")
void BPF_PROG(floodway_cwnd_event, struct sock *sk, int event)
{
	__u64 now_ns;

	if (event != CA_EVENT_TX_START)
		return;
	now_ns = bpf_ktime_get_ns();
	if (tcp_sk(sk)->packets_out == 0)
		shadow_restart(sk, now_ns);
	look_up_state(sk, now_ns);
	set_window(sk, false);
}

SEC("struct_ops")
void BPF_PROG(floodway_cong_control, struct sock *sk)
{
	__u64 now_ns = bpf_ktime_get_ns();

	look_up_state(sk, now_ns);
	shadow_acked(sk, now_ns);
	set_window(sk, tcp_sk(sk)->packets_out == 0);
}

SEC("struct_ops")
__u32 BPF_PROG(floodway_min_tso_segs, struct sock *sk)
{
	/* A window that has not changed may be the kernel's own for a retransmission: leave it. */
	if (!config.plain && look_up_state(sk, bpf_ktime_get_ns()))
		set_window(sk, tcp_sk(sk)->packets_out == 0);
	return sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_min_tso_segs;
}

SEC(".struct_ops")
struct tcp_congestion_ops floodway = {
	.init = (void *)floodway_init,
	.release = (void *)floodway_release,
	.ssthresh = (void *)floodway_ssthresh,
	.set_state = (void *)floodway_set_state,
	.undo_cwnd = (void *)floodway_undo_cwnd,
	.cwnd_event = (void *)floodway_cwnd_event,
	.cong_control = (void *)floodway_cong_control,
	.min_tso_segs = (void *)floodway_min_tso_segs,
	.name = "floodway",
};
