/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The reader of names in SYN-ACKs: a sock_ops program at the root of cgroup v2, below which every socket is.
 *
 * The kernel calls it with the SYN-ACK when a connection that the guest has begun is established, before the congestion control's `init` and
 * before it sizes the send buffer. By then NAT in the guest has been undone, so the socket is the right one whatever its addresses are. The option is
 * described in crates/floodway-wire/src/name.rs.
 *
 * It is believed if its tag is right: that takes the nonce, the numbers with which just this connection begins, and the epoch of an interface's latest
 * heartbeat. Which interface that is, is not known here otherwise. An option that is believed is a heartbeat, as a managed notice is.
 */
#ifndef FLOODWAY_NAMES_H
#define FLOODWAY_NAMES_H

#include "notices.h"

#define TCPOPT_EXPERIMENT 254
#define NAME_EXID 0x4657
/* What bpf_load_hdr_opt looks for: kind, length and a 16-bit ExID. */
#define NAME_SEARCH_LEN 4
#define NAME_LIFETIME_NS (250 * 1000000ULL)

struct name_option {
	__u8 kind;
	__u8 len;
	__be16 exid;
	__u32 name[2];
	__u32 tag;
};

/* What the tag is computed of. */
struct tagged {
	__u64 name;
	__u32 epoch;
	__be32 ack;
	__be32 next;
	__u32 zero;
};

struct search {
	struct tagged tagged;
	__u32 tag;
	__u32 ifindex; /* 0: none yet */
};

static __always_inline __u32 tag_of(const struct tagged *tagged)
{
	__u64 words[sizeof(*tagged) / 8], hash;
	__u32 halves[2];

	__builtin_memcpy(words, tagged, sizeof(words));
	hash = siphash(config.nonce, words, sizeof(words) / 8);
	__builtin_memcpy(halves, &hash, sizeof(halves));
	return halves[0];
}

/* Returns 1, which ends the search, if the heartbeat's epoch makes the tag right. */
static long try_heartbeat(void *map, __u32 *ifindex, struct heartbeat *heartbeat,
			  struct search *search)
{
	search->tagged.epoch = heartbeat->epoch;
	if (tag_of(&search->tagged) != search->tag)
		return 0;
	search->ifindex = *ifindex;
	return 1;
}

/* Gives a socket its name. One that was connected before may have another one. */
static __always_inline void give_name(struct bpf_sock *sk, __u64 name)
{
	__u64 *given = bpf_sk_storage_get(&names, sk, &name, BPF_SK_STORAGE_GET_F_CREATE);

	if (given)
		*given = name;
}

/* Returns true if the option is believed: the socket has its name. */
static __always_inline bool read_name(struct bpf_sock_ops *skops, struct bpf_sock *sk,
				      const struct name_option *option)
{
	struct search search = {
		.tagged = { .ack = bpf_htonl(skops->snd_una), .next = bpf_htonl(skops->rcv_nxt) },
		.tag = option->tag,
	};
	__u64 name;

	__builtin_memcpy(&name, option->name, sizeof(name));
	search.tagged.name = name;
	bpf_for_each_map_elem(&heartbeats, try_heartbeat, &search, 0);
	if (!search.ifindex) {
		count(COUNTER_UNAUTHENTIC_NAME);
		return false;
	}
	count(COUNTER_NAMED);
	greet(search.ifindex, search.tagged.epoch, NAME_LIFETIME_NS);
	manage(name, search.tagged.epoch, search.ifindex);
	give_name(sk, name);
	return true;
}

SEC("sockops")
int floodway_names(struct bpf_sock_ops *skops)
{
	struct name_option option = {
		.kind = TCPOPT_EXPERIMENT,
		.len = NAME_SEARCH_LEN,
		.exid = bpf_htons(NAME_EXID),
	};
	struct bpf_sock *sk = skops->sk;

	if (skops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || !sk)
		return 1;
	if (bpf_load_hdr_opt(skops, &option, sizeof(option), 0) != sizeof(option) ||
	    !read_name(skops, sk, &option))
		/* What the socket was connected to before. */
		bpf_sk_storage_delete(&names, sk);
	return 1;
}

#endif
