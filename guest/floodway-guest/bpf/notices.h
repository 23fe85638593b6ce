/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the guest knows from notices: the reader (reader.h) writes it, the congestion control asks.
 *
 * Theory of operation: `heartbeats` has the latest heartbeat of each interface, `managed` the flows that the switch has
 * named, with the interface and the epoch under which it did. Flows are known by a name: 64 bits that switch and guest compute alike of what
 * notices say (crates/floodway-wire/src/name.rs). A socket's is what its SYN-ACK has borne (names.h), or else that of its own addresses. A flow is online while the latest heartbeat of
 * that interface is of that epoch and younger than its lifetime; so a new epoch takes all flows of the old one
 * offline at once, and silence does so by time alone. Entries of closed flows are deleted; whatever is left behind by
 * lost notices ages out of the LRU map.
 *
 * Invariant: nothing but a notice that bears this guest's nonce makes a flow online. A reader may see half of a heartbeat that is being written:
 * a new epoch with the old time, or the old one with the new lifetime. The next event reads it whole.
 */
#ifndef FLOODWAY_NOTICES_H
#define FLOODWAY_NOTICES_H

#include "config.h"
#include "siphash.h"

#define MAX_INTERFACES 64
#define MAX_FLOWS 16384

/* A flow as the guest transmits it; bytes 12 to 51 of a notice, with the reserved ones zero. */
struct flow_key {
	__u8 family; /* 4 or 6 */
	__u8 reserved[3];
	__be32 guest[4]; /* IPv4 as ::ffff:a.b.c.d */
	__be32 peer[4];
	__be16 guest_port;
	__be16 peer_port;
};

struct heartbeat {
	__u64 arrival_ns; /* bpf_ktime_get_ns() */
	__u64 lifetime_ns;
	__u32 epoch;
	__u32 reserved;
};

struct managed {
	__u32 epoch;
	__u32 ifindex;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_INTERFACES);
	__type(key, __u32); /* ifindex */
	__type(value, struct heartbeat);
} heartbeats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, __u64); /* name */
	__type(value, struct managed);
} managed SEC(".maps");

/* Names that sockets have been given. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} names SEC(".maps");

/* The loader prints them in this order. */
enum counter {
	COUNTER_HELLO,
	COUNTER_MANAGED,
	COUNTER_OFFLINE,
	COUNTER_MALFORMED,
	COUNTER_FLOW_ONLINE,
	COUNTER_FLOW_OFFLINE,
	COUNTER_UNAUTHENTIC,
	COUNTER_NAMED,
	COUNTER_UNAUTHENTIC_NAME,
	COUNTER_OLDER,
	COUNTERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 counter)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		(*value)++;
}

static __always_inline bool is_mapped(const __be32 *address)
{
	return address[0] == 0 && address[1] == 0 && address[2] == bpf_htonl(0xffff);
}

static __always_inline void set_mapped(__be32 *mapped, __be32 address)
{
	mapped[2] = bpf_htonl(0xffff);
	mapped[3] = address;
}

/* The key of a socket. An IPv6 socket with a mapped peer speaks IPv4. */
static __always_inline void key_of(struct sock *sk, struct flow_key *key)
{
	struct sock_common *common = &sk->__sk_common;

	__builtin_memset(key, 0, sizeof(*key));
	/* Not skc_num, which is 0 by the time the socket is released. */
	key->guest_port = ((struct inet_sock *)sk)->inet_sport;
	key->peer_port = common->skc_dport;
	key->family = 4;
	if (common->skc_family == AF_INET6) {
		for (int i = 0; i < 4; i++) {
			key->peer[i] = common->skc_v6_daddr.in6_u.u6_addr32[i];
			key->guest[i] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
		}
		if (!is_mapped(key->peer)) {
			key->family = 6;
			return;
		}
		__builtin_memset(key->guest, 0, sizeof(key->guest));
	}
	set_mapped(key->peer, common->skc_daddr);
	set_mapped(key->guest, common->skc_rcv_saddr);
}

static __always_inline __u64 name_of_key(const struct flow_key *key)
{
	__u64 words[sizeof(*key) / 8];

	__builtin_memcpy(words, key, sizeof(words));
	return siphash(config.nonce, words, sizeof(words) / 8);
}

/* What notices call the flow of a socket. */
static __always_inline __u64 name_of(struct sock *sk)
{
	struct flow_key key;
	__u64 *given;

	if (config.plain)
		return 0;
	given = bpf_sk_storage_get(&names, sk, 0, 0);
	if (given)
		return *given;
	key_of(sk, &key);
	return name_of_key(&key);
}

/* Whether the switch holds this flow back, as far as the guest knows now. */
static __always_inline bool is_managed(__u64 name, __u64 now_ns)
{
	struct managed *named;
	struct heartbeat *heartbeat;
	__u32 ifindex;

	if (config.plain)
		return false;
	named = bpf_map_lookup_elem(&managed, &name);
	if (!named)
		return false;
	ifindex = named->ifindex;
	heartbeat = bpf_map_lookup_elem(&heartbeats, &ifindex);
	return heartbeat && heartbeat->epoch == named->epoch &&
	       now_ns - heartbeat->arrival_ns < heartbeat->lifetime_ns;
}

static __always_inline void forget(__u64 name)
{
	if (!config.plain)
		bpf_map_delete_elem(&managed, &name);
}

/* A heartbeat has come. */
static __always_inline void greet(__u32 ifindex, __u32 epoch, __u64 lifetime_ns)
{
	struct heartbeat heartbeat = {
		.arrival_ns = bpf_ktime_get_ns(),
		.lifetime_ns = lifetime_ns,
		.epoch = epoch,
	};

	bpf_map_update_elem(&heartbeats, &ifindex, &heartbeat, BPF_ANY);
}

/* A flow is managed. Notices repeat, so an entry that says the same is left alone. */
static __always_inline void manage(__u64 name, __u32 epoch, __u32 ifindex)
{
	struct managed value = { .epoch = epoch, .ifindex = ifindex };
	struct managed *known = bpf_map_lookup_elem(&managed, &name);

	if (!known || known->epoch != epoch || known->ifindex != ifindex)
		bpf_map_update_elem(&managed, &name, &value, BPF_ANY);
}

#endif
