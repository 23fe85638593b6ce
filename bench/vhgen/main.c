/*
 * vhgen: measures how fast a vhost-user switch carries frames from one port to another.
 *
 * One thread plays both guests with DPDK's virtio-user ports. It keeps port A's transmit ring full and empties port B's
 * receive ring, so the switch is the bottleneck; `full_bursts` (bursts that found no room) shows whether it was. Frames
 * that take many receive buffers would overrun B's ring in one burst; there a window bounds the frames in flight, as
 * TCP's does. A frame is in flight until it or a later one arrives, or until nothing has arrived for WRITE_OFF_S.
 *
 * With --burst the client works as a guest does that prepares data, hands it over at once, and does something else: a burst leaves, all of
 * it is waited for (an exchange), and a gap follows. How long exchanges take, and their quantiles, are figures then.
 *
 * Without port B frames go to the host, by the switch's uplink: a counter of the kernel tells how many it has received, or it answers ICMP
 * echo requests, and port A receives the replies.
 *
 * It announces both MAC addresses until they cross (the switch has connected and learnt), and prints a line. Each line of its standard
 * input, "SETTLE SECONDS", is then a slice: frames move for SETTLE seconds and are not counted, then for SECONDS and are; a line of
 * figures follows. Between slices nothing moves, and frames stay where they are: the switch may be stopped then. When standard input
 * ends, frames that are under way are received, and a last line counts all: loss is only known there.
 * Lines of output are JSON objects. Exit status: 0 all was measured, 1 the switch or DPDK failed, 2 bad command line.
 *
 * By hand: (echo 0.5 3) | vhgen --server --port-a a.sock --port-b b.sock
 */
#include <fcntl.h>
#include <rte_cycles.h>
#include <rte_ethdev.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "frame.h"
#include "options.h"
#include "ports.h"

#define BURST 32u
#define LEARN_TIMEOUT_S 15.0
#define DRAIN_S 0.25
#define WRITE_OFF_S 0.2

struct traffic {
	struct frame_kind kind;
	struct port a, b;
	const struct port *in;           /* where frames arrive; NULL: at the host */
	int counter;                     /* file that counts what the host has received; -1: none */
	struct rte_mbuf *waiting[BURST]; /* built, not yet taken by A's ring: waiting[first..BURST] */
	unsigned first;
	uint32_t next_sequence, next_flow;
	uint32_t expected;               /* sequence number that B should see next */
	uint32_t window;                 /* frames in flight at most; 0: no bound */
	uint32_t oldest_in_flight;       /* sequence number */
	uint64_t last_arrival;           /* TSC */
	uint32_t burst;                  /* frames of an exchange; 0: the ring is kept full */
	uint64_t gap;                    /* TSC cycles after an exchange */
};

struct counters {
	uint64_t sent, bursts, full_bursts, unbuilt;
	uint64_t received, foreign, cut, corrupt, reordered;
	uint64_t exchanges, lost_exchanges;
	double exchange_seconds;     /* sum of all of them */
	double seconds, cpu_seconds; /* of the phase; the difference went to other programs on this core */
};

/* The first exchanges of a slice, in microseconds. */
static float exchange_us[1 << 16];

static volatile sig_atomic_t stopped;

static void on_signal(int signal)
{
	(void)signal;
	stopped = 1;
}

static uint64_t cycles(double seconds)
{
	return seconds * rte_get_tsc_hz();
}

static double cpu_seconds(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return used.tv_sec + used.tv_nsec / 1e9;
}

static struct rte_mbuf *new_chain(struct rte_mempool *pool, unsigned segments)
{
	struct rte_mbuf *head = rte_pktmbuf_alloc(pool), *tail = head;

	for (unsigned i = 1; head && i < segments; i++) {
		tail->next = rte_pktmbuf_alloc(pool);
		if (!tail->next) {
			rte_pktmbuf_free(head);
			return NULL;
		}
		tail = tail->next;
		head->nb_segs++;
	}
	return head;
}

/* True if `count` frames' empty buffers are at the end of `waiting`. */
static bool take_buffers(struct traffic *t, unsigned count)
{
	unsigned segments = frame_segments(&t->kind);
	struct rte_mbuf **taken = t->waiting + BURST - count;

	if (segments == 1)
		return rte_pktmbuf_alloc_bulk(t->a.tx_pool, taken, count) == 0;
	for (unsigned i = 0; i < count; i++) {
		taken[i] = new_chain(t->a.tx_pool, segments);
		if (!taken[i]) {
			rte_pktmbuf_free_bulk(taken, i);
			return false;
		}
	}
	return true;
}

/* Builds `count` frames, when none waits. */
static bool build_burst(struct traffic *t, unsigned count)
{
	if (!take_buffers(t, count))
		return false;
	for (unsigned i = BURST - count; i < BURST; i++) {
		frame_write(&t->kind, t->waiting[i], t->next_sequence++, t->next_flow);
		if (++t->next_flow == t->kind.flows)
			t->next_flow = 0;
	}
	t->first = BURST - count;
	return true;
}

static inline uint32_t next_to_send(const struct traffic *t)
{
	return t->next_sequence - (BURST - t->first);
}

/* Frames that the window lets go now. */
static inline unsigned allowance(const struct traffic *t)
{
	uint32_t in_flight = next_to_send(t) - t->oldest_in_flight;

	return t->window ? t->window - RTE_MIN(t->window, in_flight) : BURST;
}

static inline void send_burst(struct traffic *t, struct counters *c)
{
	if (t->first == BURST && !build_burst(t, BURST)) {
		c->unbuilt++;
		return;
	}
	unsigned count = BURST - t->first;
	unsigned taken = rte_eth_tx_burst(t->a.id, 0, t->waiting + t->first, RTE_MIN(count, allowance(t)));

	t->first += taken;
	c->sent += taken;
	c->bursts++;
	c->full_bursts += taken < count;
}

static inline void count_frame(struct traffic *t, struct counters *c, struct rte_mbuf *m)
{
	uint32_t sequence;

	switch (frame_check(&t->kind, m, &sequence)) {
	case FRAME_GOOD: break;
	case FRAME_CORRUPT: c->corrupt++; break;
	case FRAME_CUT: c->cut++; return;
	case FRAME_FOREIGN: c->foreign++; return;
	}
	c->received++;
	c->reordered += (int32_t)(sequence - t->expected) < 0;
	t->expected = t->oldest_in_flight = sequence + 1;
}

static inline unsigned receive_burst(struct traffic *t, struct counters *c)
{
	struct rte_mbuf *frames[BURST];

	if (!t->in)
		return 0;
	unsigned count = rte_eth_rx_burst(t->in->id, 0, frames, BURST);

	for (unsigned i = 0; i < count; i++) {
		if (i + 4 < count)
			rte_prefetch0(rte_pktmbuf_mtod(frames[i + 4], void *));
		count_frame(t, c, frames[i]);
	}
	rte_pktmbuf_free_bulk(frames, count);
	return count;
}

/* Forgets frames in flight that the switch must have dropped. */
static void write_off(struct traffic *t, uint64_t arrivals, uint64_t now)
{
	if (!arrivals && now - t->last_arrival < cycles(WRITE_OFF_S))
		return;
	if (!arrivals)
		t->oldest_in_flight = next_to_send(t);
	t->last_arrival = now;
}

/* Frames that a switch floods to A (none of ours) must not fill its ring. */
static unsigned discard(const struct port *port)
{
	struct rte_mbuf *frames[BURST];
	unsigned count = rte_eth_rx_burst(port->id, 0, frames, BURST);

	rte_pktmbuf_free_bulk(frames, count);
	return count;
}

static void discard_strays(const struct traffic *t)
{
	if (t->in != &t->a)
		discard(&t->a);
}

/* Frames that the host has received since it is up; 0 where nothing counts them. */
static uint64_t received_by_host(const struct traffic *t)
{
	char text[32] = "";

	if (t->counter < 0 || pread(t->counter, text, sizeof(text) - 1, 0) <= 0)
		return 0;
	return strtoull(text, NULL, 10);
}

static void ask(const struct port *port, uint32_t address, uint32_t wanted)
{
	struct rte_mbuf *m = rte_pktmbuf_alloc(port->tx_pool);

	if (!m)
		return;
	frame_write_arp(m, port->mac, address, wanted);
	if (rte_eth_tx_burst(port->id, 0, &m, 1) == 0)
		rte_pktmbuf_free(m);
}

static void announce(const struct port *port, uint32_t address)
{
	ask(port, address, address);
}

/* Announces both ports until each has heard the other. */
static bool learn_ports(struct traffic *t)
{
	uint64_t deadline = rte_rdtsc() + cycles(LEARN_TIMEOUT_S), next = 0;
	bool a_hears = false, b_hears = false;

	while (!stopped && rte_rdtsc() < deadline && !(a_hears && b_hears)) {
		if (rte_rdtsc() >= next) {
			announce(&t->a, FRAME_ADDRESS_A);
			announce(&t->b, FRAME_ADDRESS_B);
			next = rte_rdtsc() + cycles(0.02);
		}
		a_hears |= discard(&t->a) > 0;
		b_hears |= discard(&t->b) > 0;
	}
	return a_hears && b_hears;
}

/* Sends and receives for `seconds`. */
static void run(struct traffic *t, struct counters *c, double seconds)
{
	double cpu_start = cpu_seconds();
	uint64_t by_host = received_by_host(t);
	uint64_t start = rte_rdtsc(), now = start, end = start + cycles(seconds);

	t->last_arrival = start;

	while (now < end && !stopped) {
		uint64_t arrivals = 0;

		for (unsigned i = 0; i < 64; i++) {
			send_burst(t, c);
			arrivals += receive_burst(t, c);
		}
		discard_strays(t);
		now = rte_rdtsc();
		write_off(t, arrivals, now);
	}
	c->received += received_by_host(t) - by_host;
	c->seconds = (double)(now - start) / rte_get_tsc_hz();
	c->cpu_seconds = cpu_seconds() - cpu_start;
}

static void note_exchange(struct counters *c, uint64_t took)
{
	double seconds = (double)took / rte_get_tsc_hz();

	if (c->exchanges < RTE_DIM(exchange_us))
		exchange_us[c->exchanges] = seconds * 1e6;
	c->exchanges++;
	c->exchange_seconds += seconds;
}

/* Sends a burst and receives all of it; what does not come in WRITE_OFF_S was lost. */
static void exchange(struct traffic *t, struct counters *c)
{
	if (!build_burst(t, t->burst)) {
		c->unbuilt++;
		return;
	}
	uint64_t start = rte_rdtsc(), now = start, give_up = start + cycles(WRITE_OFF_S);

	while (t->expected != t->next_sequence && now < give_up) {
		unsigned taken = rte_eth_tx_burst(t->a.id, 0, t->waiting + t->first, BURST - t->first);

		t->first += taken;
		c->sent += taken;
		receive_burst(t, c);
		now = rte_rdtsc();
	}
	rte_pktmbuf_free_bulk(t->waiting + t->first, BURST - t->first);
	t->first = BURST;
	c->lost_exchanges += t->expected != t->next_sequence;
	t->expected = t->next_sequence;
	note_exchange(c, now - start);
}

/* Exchanges bursts for `seconds`. */
static void run_bursts(struct traffic *t, struct counters *c, double seconds)
{
	double cpu_start = cpu_seconds();
	uint64_t start = rte_rdtsc(), now = start, end = start + cycles(seconds);

	while (now < end && !stopped) {
		exchange(t, c);
		discard_strays(t);
		for (uint64_t next = rte_rdtsc() + t->gap; rte_rdtsc() < next;)
			rte_pause();
		now = rte_rdtsc();
	}
	c->seconds = (double)(now - start) / rte_get_tsc_hz();
	c->cpu_seconds = cpu_seconds() - cpu_start;
}

/* Returns true as soon as the way of the frames is open. */
static bool learn(struct traffic *t)
{
	uint64_t deadline = rte_rdtsc() + cycles(LEARN_TIMEOUT_S), before = received_by_host(t);
	struct counters tries = { 0 };

	if (t->in == &t->b)
		return learn_ports(t);
	while (!stopped && rte_rdtsc() < deadline) {
		ask(&t->a, FRAME_ADDRESS_A, FRAME_ADDRESS_HOST);
		if (t->in) {
			exchange(t, &tries);
			if (tries.lost_exchanges < tries.exchanges)
				return true;
			continue;
		}
		usleep(20000);
		if (received_by_host(t) > before && discard(&t->a) > 0)
			return true;
	}
	return false;
}

static void move(struct traffic *t, struct counters *c, double seconds)
{
	if (t->burst)
		run_bursts(t, c, seconds);
	else
		run(t, c, seconds);
}

/* Receives until nothing has come for DRAIN_S. */
static void drain(struct traffic *t, struct counters *c)
{
	uint64_t quiet_since = rte_rdtsc();

	while (!stopped && rte_rdtsc() - quiet_since < cycles(DRAIN_S))
		if (receive_burst(t, c))
			quiet_since = rte_rdtsc();
}

static int compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static void print_slice(const struct counters *c)
{
	printf("{\"seconds\":%.6f,\"cpu_seconds\":%.6f,\"received\":%lu,\"bursts\":%lu,\"full_bursts\":%lu,\"unbuilt_bursts\":%lu",
	       c->seconds, c->cpu_seconds, c->received, c->bursts, c->full_bursts, c->unbuilt);
	if (c->exchanges) {
		size_t known = RTE_MIN(c->exchanges, RTE_DIM(exchange_us));

		qsort(exchange_us, known, sizeof(exchange_us[0]), compare);
		printf(",\"exchanges\":{\"count\":%lu,\"lost\":%lu,\"seconds\":%.6f,\"p50_us\":%.3f,\"p99_us\":%.3f}",
		       c->exchanges, c->lost_exchanges, c->exchange_seconds, exchange_us[known / 2], exchange_us[known * 99 / 100]);
	}
	puts("}");
	fflush(stdout);
}

static void print_totals(const struct counters *all)
{
	printf("{\"sent\":%lu,\"received\":%lu,\"reordered\":%lu,\"cut\":%lu,\"corrupt\":%lu,\"foreign\":%lu}\n", all->sent,
	       all->received, all->reordered, all->cut, all->corrupt, all->foreign);
}

static void add(struct counters *sum, const struct counters *c)
{
	sum->sent += c->sent;
	sum->received += c->received;
	sum->foreign += c->foreign;
	sum->cut += c->cut;
	sum->corrupt += c->corrupt;
	sum->reordered += c->reordered;
}

/* The slices that lines of standard input ask for. False if one of them does not. */
static bool serve(struct traffic *t, struct counters *all)
{
	double settle, seconds;
	int fields;

	while (!stopped && (fields = scanf("%lf %lf", &settle, &seconds)) == 2) {
		struct counters before = { 0 }, measured = { 0 };

		/* A switch forgets an address that it does not see for long. */
		if (t->in == &t->b)
			announce(&t->b, FRAME_ADDRESS_B);
		else
			ask(&t->a, FRAME_ADDRESS_A, FRAME_ADDRESS_HOST);
		move(t, &before, settle);
		move(t, &measured, seconds);
		add(all, &before);
		add(all, &measured);
		print_slice(&measured);
	}
	return stopped || fields == EOF;
}

int main(int argc, char **argv)
{
	struct options o = options_parse(argc, argv);
	static struct traffic t = { .first = BURST, .counter = -1 };
	struct counters all = { 0 };
	const char *failure = NULL;

	if (o.counter && (t.counter = open(o.counter, O_RDONLY)) < 0) {
		perror(o.counter);
		return 1;
	}
	ports_start(&o, &t.a, &t.b);
	t.in = o.counter ? NULL : o.echo ? &t.a : &t.b;
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	struct frame_kind shape = { .size = o.size, .flows = o.flows, .mss = o.mss, .touch_all = o.touch_all, .echo = o.echo };
	t.kind = frame_kind_new(shape, t.a.mac, t.b.mac);
	t.window = o.window;
	t.burst = o.burst;
	t.gap = cycles(o.gap_us / 1e6);
	if (learn(&t)) {
		printf("{\"tsc_hz\":%lu}\n", rte_get_tsc_hz());
		fflush(stdout);
		if (!serve(&t, &all))
			failure = "a line of standard input is not SETTLE SECONDS";
		drain(&t, &all);
		print_totals(&all);
	} else {
		failure = t.in == &t.b ? "the switch carried no frames between the ports" :
					 "the switch carried no frames to the host";
	}
	ports_stop(&o, &t.a, &t.b);
	if (stopped)
		failure = "interrupted";
	if (failure)
		fprintf(stderr, "vhgen: %s\n", failure);
	return failure != NULL;
}
