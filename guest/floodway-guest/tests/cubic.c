/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* bpf/cubic.h on the host, against the formulas of RFC 9438 in floating point. Run by cubic.rs. */
#include "../bpf/cubic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define C 0.4
#define BETA_CUBIC 0.7
#define ALPHA_CUBIC (3 * (1 - BETA_CUBIC) / (1 + BETA_CUBIC))

static void check(bool holds, const char *what, double is, double should)
{
	if (holds)
		return;
	printf("%s: is %g, should be %g\n", what, is, should);
	exit(1);
}

static void near(const char *what, double is, double should, double tolerance)
{
	check(fabs(is - should) <= tolerance, what, is, should);
}

static void test_cube_root(void)
{
	for (__u64 root = 0; root < 65535; root += 7) {
		check(cube_root(root * root * root) == root, "cube root of a cube", root, root);
		check(cube_root((root + 1) * (root + 1) * (root + 1) - 1) == root,
		      "cube root below a cube", root, root);
	}
}

static void test_window_follows_the_cubic(void)
{
	for (__u32 w_max = 10; w_max <= 30000; w_max = w_max * 3 / 2) {
		struct cubic c;
		__u32 cwnd;
		double k;

		cubic_init(&c);
		cwnd = cubic_ssthresh(&c, w_max);
		near("cut", cwnd, w_max * BETA_CUBIC, 1 + w_max * 0.0005);
		cubic_begin(&c, cwnd, 1000);
		k = cbrt((w_max - cwnd) / C);
		near("K in ms", c.k_ms, k * 1000, 1 + k);
		for (__u32 t = 0; t < 30000; t += 97) {
			double w = C * pow(t / 1000.0 - k, 3) + w_max;

			near("W(t)", cubic_window(&c, t) / 1024.0, w, 0.1 + w * 0.002);
		}
	}
}

/* A flow that is acknowledged once per segment, `rtt_ms` long round trips, after a cut from `w_max`. */
static __u32 run(struct cubic *c, __u32 cwnd, __u32 rtt_ms, __u32 seconds)
{
	double now_ms = 5000;

	for (; now_ms < 5000 + seconds * 1000.0; now_ms += (double)rtt_ms / cwnd)
		cwnd += cubic_grow(c, cwnd, 1, rtt_ms * 1000, (__u64)(now_ms * 1e6));
	return cwnd;
}

static void test_growth(void)
{
	struct cubic c;
	__u32 cwnd;

	/* Long round trips: back at W_max at K, 7 seconds for 500 segments, and far beyond it later. */
	cubic_init(&c);
	cwnd = run(&c, cubic_ssthresh(&c, 500), 100, 7);
	near("window at K", cwnd, 500, 10);
	cubic_init(&c);
	cwnd = run(&c, cubic_ssthresh(&c, 500), 100, 14);
	near("window at 2 K", cwnd, 500 + C * pow(14 - cbrt(150 / C), 3), 20);

	/* Short ones: the Reno-friendly region, ALPHA_CUBIC segments per round trip up to W_max, then one. */
	cubic_init(&c);
	cwnd = cubic_ssthresh(&c, 100);
	near("cut", cwnd, 70, 0.5);
	for (int rtt = 0; rtt < 50; rtt++)
		cwnd += cubic_grow(&c, cwnd, cwnd, 1000, (5000 + rtt) * 1000000ULL);
	near("Reno-friendly window", cwnd, 70 + 50 * ALPHA_CUBIC, 3);
}

static void test_fast_convergence_and_idle_times(void)
{
	struct cubic c;

	cubic_init(&c);
	cubic_ssthresh(&c, 100);
	near("W_max", c.w_max, 100, 0);
	/* Cut again before W_max was reached: room for others. */
	cubic_ssthresh(&c, 80);
	near("W_max after fast convergence", c.w_max, 80 * (1 + BETA_CUBIC) / 2, 1);

	/* An hour of silence is no time for growth. */
	cubic_grow(&c, 56, 1, 10000, 1000000000ULL);
	cubic_idle(&c, 3601000000000ULL);
	near("growth after silence", cubic_grow(&c, 56, 1, 10000, 3601000000000ULL), 0, 1);
	/* A window that the curve has left far below: by half per round trip, no more. */
	near("growth after an hour", cubic_grow(&c, 56, 56, 10000, 7201000000000ULL), 28, 1);
}

int main(void)
{
	test_cube_root();
	test_window_follows_the_cubic();
	test_growth();
	test_fast_convergence_and_idle_times();
	return 0;
}
