#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frame.h"

static const char usage_text[] =
	"usage: vhgen --port-a SOCKET {--port-b SOCKET | --counter FILE | --echo} [options]\n"
	"Sends frames into a vhost-user switch on port A and counts them on port B, on one core, in slices that standard input asks for.\n"
	"  --counter FILE    no port B: frames go to the host, and FILE counts those that it has received (/sys/class/net/DEVICE/statistics/rx_packets)\n"
	"  --echo            no port B: send ICMP echo requests to the host, and receive its replies on port A\n"
	"  --server          create the sockets and wait for the switch to connect\n"
	"  --core N          CPU to run on (1)\n"
	"  --size BYTES      frame length without FCS (64)\n"
	"  --flows N         distinct source ports, 1 to 60000 (1)\n"
	"  --tso MSS         send GSO packets to be segmented at MSS bytes\n"
	"  --touch-all       write every cache line when sending, read and verify it when receiving\n"
	"  --window N        frames in flight at most; without it, port A's ring is kept full\n"
	"  --burst N         frames that leave at once and are waited for, up to 32; then comes the gap\n"
	"  --gap US          microseconds between such bursts (0)\n"
	"  --queue-size N    descriptors per virtqueue (256)\n"
	"  --memory MB       hugepage memory (512)\n"
	"  --verbose         DPDK's debug log on stderr\n";

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
	va_list args;

	fputs("vhgen: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputs("\n", stderr);
	exit(2);
}

static unsigned long parse_number(const char *name, const char *text, unsigned long low, unsigned long high)
{
	char *end;

	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	if (errno || end == text || *end || value < low || value > high)
		fail("--%s %s: give a whole number from %lu to %lu", name, text, low, high);
	return value;
}

static void check(const struct options *o)
{
	if (!o->port_a || !!o->port_b + !!o->counter + o->echo != 1)
		fail("give --port-a, and one of --port-b, --counter and --echo\n%s", usage_text);
	if (strchr(o->port_a, ',') || (o->port_b && strchr(o->port_b, ',')))
		fail("a socket path must not contain a comma (DPDK's device arguments use it)");
	uint32_t smallest = frame_smallest(o->mss != 0);
	if (o->size < smallest || o->size > FRAME_MAX)
		fail("--size %u: give %u to %u bytes", o->size, smallest, FRAME_MAX);
	if (o->echo && (o->mss || o->flows != 1))
		fail("--echo: neither with --tso nor with --flows");
	if (o->counter && (o->window || o->burst))
		fail("--counter: neither with --window nor with --burst, which wait for frames that come back");
	if (o->queue_size & (o->queue_size - 1))
		fail("--queue-size %u: give a power of two", o->queue_size);
}

struct options options_parse(int argc, char **argv)
{
	enum { PORT_A = 1, PORT_B, COUNTER, ECHO, SERVER, CORE, SIZE, FLOWS, TSO, TOUCH, WINDOW, BURST, GAP, QUEUE, MEMORY, VERBOSE };
	static const struct option names[] = {
		{ "port-a", 1, NULL, PORT_A }, { "port-b", 1, NULL, PORT_B }, { "counter", 1, NULL, COUNTER },
		{ "echo", 0, NULL, ECHO }, { "server", 0, NULL, SERVER },
		{ "core", 1, NULL, CORE }, { "size", 1, NULL, SIZE }, { "flows", 1, NULL, FLOWS },
		{ "tso", 1, NULL, TSO }, { "touch-all", 0, NULL, TOUCH }, { "window", 1, NULL, WINDOW }, { "burst", 1, NULL, BURST },
		{ "gap", 1, NULL, GAP }, { "queue-size", 1, NULL, QUEUE },
		{ "memory", 1, NULL, MEMORY }, { "verbose", 0, NULL, VERBOSE }, { NULL, 0, NULL, 0 },
	};
	struct options o = { .core = 1, .size = 64, .flows = 1, .queue_size = 256, .memory_mb = 512 };
	int index, option;

	while ((option = getopt_long(argc, argv, "", names, &index)) != -1) {
		switch (option) {
		case PORT_A: o.port_a = optarg; break;
		case PORT_B: o.port_b = optarg; break;
		case COUNTER: o.counter = optarg; break;
		case ECHO: o.echo = true; break;
		case SERVER: o.server = true; break;
		case CORE: o.core = parse_number("core", optarg, 0, 1023); break;
		case SIZE: o.size = parse_number("size", optarg, 1, FRAME_MAX); break;
		case FLOWS: o.flows = parse_number("flows", optarg, 1, 60000); break;
		case TSO: o.mss = parse_number("tso", optarg, 88, 9000); break;
		case TOUCH: o.touch_all = true; break;
		case WINDOW: o.window = parse_number("window", optarg, 1, 1u << 20); break;
		case BURST: o.burst = parse_number("burst", optarg, 1, 32); break;
		case GAP: o.gap_us = parse_number("gap", optarg, 0, 1000000); break;
		case QUEUE: o.queue_size = parse_number("queue-size", optarg, 64, 1024); break;
		case MEMORY: o.memory_mb = parse_number("memory", optarg, 64, 65536); break;
		case VERBOSE: o.verbose = true; break;
		default: fputs(usage_text, stderr); exit(2);
		}
	}
	if (optind != argc)
		fail("unexpected argument %s", argv[optind]);
	check(&o);
	return o;
}
