/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * CUBIC (RFC 9438), written from the RFC in integers: times in milliseconds, windows in segments, and where fractions of
 * a segment matter in units of 2^-10 segments.
 *
 * Theory of operation. After a cut from W_max the window grows along W(t) = C (t - K)^3 + W_max, so that it is back at W_max at time K,
 * flat around it, and probes beyond it. W_est is the window that Reno would have on average; the larger of the two
 * rules (section 4.3). The epoch (t = 0) begins with the first ACK of congestion avoidance after a cut, and is moved on by
 * idle times (section 5.8), which prove nothing of the path.
 */
#ifndef FLOODWAY_CUBIC_H
#define FLOODWAY_CUBIC_H

#include "types.h"

#define ONE 1024U /* a segment in units of 2^-10 */
#define BETA 717U /* 0.7 */
#define ALPHA 542U /* 3 (1 - beta) / (1 + beta) = 0.529 */
/* C = 0.4 segments/s^3: C (d ms)^3 in units of 2^-10 segments is d^3 * 2048 / 5e9. */
#define C_NUMERATOR 2048ULL
#define C_DENOMINATOR 5000000000ULL
/* d^3 * 2048 must fit 64 bits; W(t) has left any window behind long before. */
#define MAX_DISTANCE_MS 200000U
#define NSEC_PER_MS 1000000ULL

struct cubic {
	__u32 w_max; /* segments; 0: none yet */
	__u32 k_ms;
	__u32 epoch_ms; /* when the epoch began */
	__u32 latest_ms; /* latest growth */
	__u32 w_est; /* 2^-10 segments */
	__u32 w_est_cnt; /* what is due to w_est: 2^-10 segments times the window */
	__u32 remainder; /* what is due to the window: 2^-10 segments times the window */
	__u32 running; /* in an epoch */
};

static __always_inline void cubic_init(struct cubic *c)
{
	c->w_max = 0;
	c->running = 0;
}

/* Section 4.6 and 4.7 (fast convergence). */
static __always_inline __u32 cubic_ssthresh(struct cubic *c, __u32 cwnd)
{
	c->w_max = cwnd < c->w_max ? cwnd * (ONE + BETA) / (2 * ONE) : cwnd;
	c->running = 0;
	return cwnd * BETA / ONE;
}

/* Section 4.8: the epoch after a timeout begins with K = 0. */
static __always_inline void cubic_timeout(struct cubic *c)
{
	cubic_init(c);
}

static __always_inline void cubic_idle(struct cubic *c, __u64 now_ns)
{
	__u32 now_ms = now_ns / NSEC_PER_MS;

	if (c->running) {
		c->epoch_ms += now_ms - c->latest_ms;
		c->latest_ms = now_ms;
	}
}

/* Largest integer whose cube is at most `value`, digit by digit. `value` is below 2^48. */
static __always_inline __u32 cube_root(__u64 value)
{
	__u64 root = 0;

	for (int bit = 15; bit >= 0; bit--) {
		__u64 next = root | 1ULL << bit;

		if (next * next * next <= value)
			root = next;
	}
	return root;
}

static __always_inline void cubic_begin(struct cubic *c, __u32 cwnd, __u32 now_ms)
{
	c->running = 1;
	c->epoch_ms = now_ms;
	c->w_est = cwnd * ONE;
	c->w_est_cnt = 0;
	c->remainder = 0;
	if (cwnd < c->w_max) {
		/* K = cbrt((W_max - cwnd) / C) seconds: (W_max - cwnd) * 2.5e9 ms^3. */
		c->k_ms = cube_root((__u64)(c->w_max - cwnd) * 2500000000ULL);
	} else {
		c->k_ms = 0;
		c->w_max = cwnd;
	}
}

/* W(t), in 2^-10 segments. */
static __always_inline __u32 cubic_window(const struct cubic *c, __u32 t_ms)
{
	bool before = t_ms < c->k_ms;
	__u64 d = min32(before ? c->k_ms - t_ms : t_ms - c->k_ms, MAX_DISTANCE_MS);
	__u64 offset = d * d * d * C_NUMERATOR / C_DENOMINATOR;
	__u64 w_max = (__u64)c->w_max * ONE;

	if (before)
		return w_max > offset ? w_max - offset : 0;
	offset += w_max;
	return offset < 0xffffffffULL ? offset : 0xffffffffU;
}

static __always_inline void grow_w_est(struct cubic *c, __u32 cwnd, __u32 acked)
{
	/* Section 4.3: at Reno's own pace once the window of before the cut is reached. */
	__u32 alpha = c->w_est < c->w_max * ONE ? ALPHA : ONE;
	__u32 step;

	c->w_est_cnt += acked * alpha;
	step = c->w_est_cnt / cwnd;
	c->w_est_cnt -= step * cwnd;
	c->w_est += step;
}

/* Whole segments by which the window grows when `acked` segments are delivered in congestion avoidance. */
static __always_inline __u32 cubic_grow(struct cubic *c, __u32 cwnd, __u32 acked, __u32 srtt_us,
					__u64 now_ns)
{
	__u32 now_ms = now_ns / NSEC_PER_MS;
	__u32 window = cwnd * ONE;
	__u32 target, step;
	__u64 due;

	if (!c->running)
		cubic_begin(c, cwnd, now_ms);
	c->latest_ms = now_ms;
	grow_w_est(c, cwnd, acked);
	if (cubic_window(c, now_ms - c->epoch_ms) < c->w_est)
		return c->w_est > window ? (c->w_est - window) / ONE : 0;
	/* Section 4.4 and 4.5: towards W(t + RTT), by at most half the window per RTT. */
	target = cubic_window(c, now_ms - c->epoch_ms + srtt_us / 1000);
	target = min32(target, window + window / 2);
	if (target <= window)
		return 0;
	due = (__u64)(target - window) * acked + c->remainder;
	step = due / window;
	c->remainder = due - (__u64)step * window;
	return step;
}

#endif
