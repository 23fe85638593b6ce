/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Gives the congestion control to connections that are older than it: an iterator over TCP sockets (iter/tcp), which the loader runs
 * once, after registration.
 *
 * A socket is changed if it has the default of before: made now it would have ours. Any other algorithm was chosen by an application and stays. Ours of an
 * earlier installation stays, too: its window may be that of a flow that is online. Listening sockets do not need it: what they accept gets the
 * default at that time. Connections that are being opened keep theirs: when they are established they could no longer be named. A connection that is
 * changed keeps its window (shadow.h) and its round trips, and is online once the switch names it, as any other.
 *
 * Sockets of other network namespaces are not seen. Time-wait sockets and requests for connections have no congestion control.
 */
#ifndef FLOODWAY_OLDER_H
#define FLOODWAY_OLDER_H

#include "notices.h"

#define IPPROTO_TCP 6
#define TCP_CONGESTION 13
/* enum { TCP_ESTABLISHED = 1, ... } */
#define TCP_SYN_SENT 2
#define TCP_LISTEN 10

static __always_inline bool has_previous_default(struct tcp_sock *tp)
{
	__u64 name[TCP_CA_NAME_MAX / 8] = {};

	if (bpf_getsockopt(tp, IPPROTO_TCP, TCP_CONGESTION, name, sizeof(name)))
		return false;
	return name[0] == config.previous[0] && name[1] == config.previous[1];
}

SEC("iter/tcp")
int floodway_older(struct bpf_iter__tcp *context)
{
	struct sock_common *common = context->sk_common;
	char ours[] = "floodway";
	struct tcp_sock *tp;

	/* None at the end. */
	if (!common || common->skc_state == TCP_LISTEN || common->skc_state == TCP_SYN_SENT)
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (tp && has_previous_default(tp) &&
	    !bpf_setsockopt(tp, IPPROTO_TCP, TCP_CONGESTION, ours, sizeof(ours)))
		count(COUNTER_OLDER);
	return 0;
}

#endif
