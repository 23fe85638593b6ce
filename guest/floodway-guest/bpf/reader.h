/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The reader of notices: a classifier at the ingress of each interface.
 *
 * Frames of other types cost one comparison. A notice ends here; what bears our type but not our magic is somebody
 * else's experiment and goes on. The format is described in crates/floodway-wire/src/notice.rs.
 *
 * Anybody on a network can send such frames to a guest that is not behind a switch of ours. So a notice counts only if it bears the
 * nonce that was drawn when the module was installed. One that does not is turned into the frame that says the nonce, and
 * goes back: to the nearest bridge, whose group address no bridge forwards, and now and then only, since others may cause it.
 * A notice of an epoch that was not answered yet is answered in the same way, though it is believed: a switch that a moved guest comes to has been told the nonce, but not
 * what the module can do.
 * However long a notice claims to be valid, it is believed for MAX_LIFETIME_MS.
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
/* Offsets in the frame. */
#define NOTICE_KIND_AT (ETH_HLEN + 3)
#define NOTICE_FEATURES_AT (ETH_HLEN + 10)
#define NOTICE_NONCE_AT (ETH_HLEN + 52)
#define NOTICE_END (NOTICE_NONCE_AT + 8)
/* Feature: names in SYN-ACKs are read. */
#define NOTICE_READS_NAMES 1
/* The switch says 250. */
#define MAX_LIFETIME_MS 1000
/* Between two frames that say the nonce, on one interface. */
#define ANSWER_INTERVAL_NS (20 * NSEC_PER_MSEC)

enum notice_kind { NOTICE_HEARTBEAT = 1, NOTICE_MANAGED = 2, NOTICE_OFFLINE = 3, NOTICE_NONCE = 4 };

/* When the nonce was said last, and to which incarnation of the switch. */
struct answered {
	__u64 at; /* bpf_ktime_get_ns() */
	__be32 epoch;
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_INTERFACES);
	__type(key, __u32); /* ifindex */
	__type(value, struct answered);
} answers SEC(".maps");

struct notice {
	__be16 magic;
	__u8 version;
	__u8 kind;
	__be32 epoch;
	__be16 lifetime_ms;
	__be16 reserved;
};

static __always_inline void greet_for(struct __sk_buff *skb, const struct notice *notice)
{
	__u32 lifetime_ms = min32(bpf_ntohs(notice->lifetime_ms), MAX_LIFETIME_MS);

	greet(skb->ifindex, notice->epoch, lifetime_ms * NSEC_PER_MSEC);
}

static __always_inline bool read_heartbeat(struct __sk_buff *skb, const struct notice *notice)
{
	greet_for(skb, notice);
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
	struct flow_key key;

	if (!read_flow(skb, &key))
		return false;
	count(COUNTER_MANAGED);
	/* A lifetime makes it a heartbeat as well. */
	if (notice->lifetime_ms)
		greet_for(skb, notice);
	manage(name_of_key(&key), notice->epoch, skb->ifindex);
	return true;
}

static __always_inline bool read_offline(struct __sk_buff *skb)
{
	struct flow_key key;

	if (!read_flow(skb, &key))
		return false;
	count(COUNTER_OFFLINE);
	forget(name_of_key(&key));
	return true;
}

static __always_inline bool is_authentic(struct __sk_buff *skb)
{
	__u64 nonce;

	return !bpf_skb_load_bytes(skb, NOTICE_NONCE_AT, &nonce, sizeof(nonce)) &&
	       nonce == config.nonce;
}

/* Whether the nonce was not said for a while, and is said now. */
static __always_inline bool may_answer(__u32 ifindex, __be32 epoch)
{
	struct answered now = { .at = bpf_ktime_get_ns(), .epoch = epoch };
	struct answered *last = bpf_map_lookup_elem(&answers, &ifindex);

	if (last && now.at - last->at < ANSWER_INTERVAL_NS)
		return false;
	return bpf_map_update_elem(&answers, &ifindex, &now, BPF_ANY) == 0;
}

/* Whether this incarnation of the switch has been answered. */
static __always_inline bool is_answered(__u32 ifindex, __be32 epoch)
{
	struct answered *last = bpf_map_lookup_elem(&answers, &ifindex);

	return last && last->epoch == epoch;
}

/* Turns a notice into the frame that says the nonce, and what the module can do. */
static __always_inline int answer(struct __sk_buff *skb, __be32 epoch)
{
	const __u8 nearest_bridge[6] = { 0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e };
	__be16 features = config.reads_names ? bpf_htons(NOTICE_READS_NAMES) : 0;
	__u8 own[6], kind = NOTICE_NONCE;
	__u64 nonce = config.nonce;

	/* A shorter one is an older switch's, which knows no nonces. */
	if (skb->len < NOTICE_END || bpf_skb_load_bytes(skb, 0, own, sizeof(own)) || own[0] & 1)
		return TC_ACT_SHOT;
	if (!may_answer(skb->ifindex, epoch))
		return TC_ACT_SHOT;
	if (bpf_skb_store_bytes(skb, 0, nearest_bridge, sizeof(nearest_bridge), 0) ||
	    bpf_skb_store_bytes(skb, sizeof(own), own, sizeof(own), 0) ||
	    bpf_skb_store_bytes(skb, NOTICE_KIND_AT, &kind, sizeof(kind), 0) ||
	    bpf_skb_store_bytes(skb, NOTICE_FEATURES_AT, &features, sizeof(features), 0) ||
	    bpf_skb_store_bytes(skb, NOTICE_NONCE_AT, &nonce, sizeof(nonce), 0))
		return TC_ACT_SHOT;
	return bpf_redirect(skb->ifindex, 0);
}

static __always_inline bool is_from_switch(const struct notice *notice)
{
	return notice->version == NOTICE_VERSION && notice->epoch != 0 &&
	       notice->kind >= NOTICE_HEARTBEAT && notice->kind <= NOTICE_OFFLINE;
}

static __always_inline bool read_notice(struct __sk_buff *skb, const struct notice *notice)
{
	switch (notice->kind) {
	case NOTICE_HEARTBEAT:
		return read_heartbeat(skb, notice);
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
	    !is_from_switch(&notice)) {
		count(COUNTER_MALFORMED);
		return TC_ACT_SHOT;
	}
	if (!is_authentic(skb)) {
		count(COUNTER_UNAUTHENTIC);
		return answer(skb, notice.epoch);
	}
	if (!read_notice(skb, &notice))
		count(COUNTER_MALFORMED);
	return is_answered(skb->ifindex, notice.epoch) ? TC_ACT_SHOT : answer(skb, notice.epoch);
}

#endif
