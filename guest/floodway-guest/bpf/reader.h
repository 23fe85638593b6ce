/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The reader of notices: a classifier at the ingress of each interface.
 *
 * Frames of other types cost one comparison. A notice ends here; what bears our type but not our magic is somebody
 * else's experiment and goes on. The format is described in crates/floodway-wire/src/notice.rs.
 */
#ifndef FLOODWAY_READER_H
#define FLOODWAY_READER_H

#include "notices.h"

#include <linux/pkt_cls.h>

#define ETH_HLEN 14
#define NOTICE_ETHERTYPE 0x88b5
#define NOTICE_MAGIC 0x4657
#define NOTICE_VERSION 1
#define NSEC_PER_MSEC 1000000ULL

enum notice_kind { NOTICE_HELLO = 1, NOTICE_MANAGED = 2, NOTICE_OFFLINE = 3 };

struct notice {
	__be16 magic;
	__u8 version;
	__u8 kind;
	__be32 epoch;
	__be16 lifetime_ms;
	__be16 reserved;
};

static __always_inline void greet(struct __sk_buff *skb, const struct notice *notice)
{
	struct hello hello = {
		.arrival_ns = bpf_ktime_get_ns(),
		.lifetime_ns = bpf_ntohs(notice->lifetime_ms) * NSEC_PER_MSEC,
		.epoch = notice->epoch,
	};
	__u32 ifindex = skb->ifindex;

	bpf_map_update_elem(&hellos, &ifindex, &hello, BPF_ANY);
}

static __always_inline bool read_hello(struct __sk_buff *skb, const struct notice *notice)
{
	greet(skb, notice);
	count(COUNTER_HELLO);
	return true;
}

static __always_inline bool read_flow(struct __sk_buff *skb, struct flow_key *key)
{
	if (bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(struct notice), key, sizeof(*key)))
		return false;
	__builtin_memset(key->reserved, 0, sizeof(key->reserved));
	if (key->family == 4)
		return is_mapped(key->guest) && is_mapped(key->peer);
	return key->family == 6;
}

static __always_inline bool read_managed(struct __sk_buff *skb, const struct notice *notice)
{
	struct managed value = { .epoch = notice->epoch, .ifindex = skb->ifindex };
	struct managed *known;
	struct flow_key key;

	if (!read_flow(skb, &key))
		return false;
	count(COUNTER_MANAGED);
	/* A lifetime makes it a hello as well. */
	if (notice->lifetime_ms)
		greet(skb, notice);
	/* Notices repeat: leave the entry alone when it says the same. */
	known = bpf_map_lookup_elem(&managed, &key);
	if (!known || known->epoch != value.epoch || known->ifindex != value.ifindex)
		bpf_map_update_elem(&managed, &key, &value, BPF_ANY);
	return true;
}

static __always_inline bool read_offline(struct __sk_buff *skb)
{
	struct flow_key key;

	if (!read_flow(skb, &key))
		return false;
	count(COUNTER_OFFLINE);
	bpf_map_delete_elem(&managed, &key);
	return true;
}

static __always_inline bool read_notice(struct __sk_buff *skb, const struct notice *notice)
{
	if (notice->version != NOTICE_VERSION || notice->epoch == 0)
		return false;
	switch (notice->kind) {
	case NOTICE_HELLO:
		return read_hello(skb, notice);
	case NOTICE_MANAGED:
		return read_managed(skb, notice);
	case NOTICE_OFFLINE:
		return read_offline(skb);
	default:
		return false;
	}
}

/* Frames that are not for us go on to the interface's other classifiers (TC_ACT_OK would end them). */
SEC("tc")
int floodway_notices(struct __sk_buff *skb)
{
	struct notice notice;
	__be16 magic;

	if (skb->protocol != bpf_htons(NOTICE_ETHERTYPE))
		return TC_ACT_UNSPEC;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &magic, sizeof(magic)) ||
	    magic != bpf_htons(NOTICE_MAGIC))
		return TC_ACT_UNSPEC;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &notice, sizeof(notice)) ||
	    !read_notice(skb, &notice))
		count(COUNTER_MALFORMED);
	return TC_ACT_SHOT;
}

#endif
