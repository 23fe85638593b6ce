/*
 * lwIP as one end of one TCP connection, in a process of its own.
 *
 * The test drives it in lock step over standard input and output: each request carries the time, and
 * each reply ends with the state of the connection. lwIP's clock is the time of the latest request
 * (sys_now below replaces the library's), so a run follows from its requests alone, whether they carry
 * virtual time or real time.
 *
 * Usage: endpoint (listen | connect) OWN-ADDRESS PEER-ADDRESS LAST-BYTE-OF-MAC SEED
 */

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lwip/etharp.h>
#include <lwip/init.h>
#include <lwip/ip4_addr.h>
#include <lwip/netif.h>
#include <lwip/pbuf.h>
#include <lwip/priv/tcp_priv.h>
#include <lwip/tcp.h>
#include <lwip/timeouts.h>
#include <netif/ethernet.h>

#define PORT 80
#define LARGEST 65536

/* Requests: FRAME, WRITE carry bytes, READ carries how many bytes to read at most (32 bits). */
enum request_kind { POLL = 0, FRAME = 1, WRITE = 2, READ = 3, CLOSE = 4, CONNECT = 5, ABORT = 6 };
/* Parts of a reply. STATE is the last one. */
enum reply_kind { STATE = 0, SENT_FRAME = 1, DATA = 2 };

struct request {
	uint32_t kind;
	uint32_t len;
	uint64_t now_ms;
};

struct reply {
	uint32_t kind;
	uint32_t len;
};

struct state {
	uint32_t established;
	/* The peer's FIN has come and everything before it was read. */
	uint32_t ended;
	/* The connection is closed for good, or in TIME-WAIT. */
	uint32_t closed;
	uint32_t reset;
	/* Bytes that the last WRITE has taken. */
	uint32_t written;
	/* There are segments that are not sent, or not acknowledged. */
	uint32_t queued;
	/* Milliseconds to the next timer. */
	uint32_t sleep_ms;
};

static uint32_t clock_ms;
static struct netif netif;
static struct tcp_pcb *pcb;
/* Received and not read. */
static struct pbuf *unread;
static int fin_received;
static struct state state;

u32_t sys_now(void)
{
	return clock_ms;
}

static void fail(const char *what)
{
	fprintf(stderr, "lwip endpoint: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Returns 0 at the end of the input. */
static int read_all(void *to, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = read(0, (char *)to + done, len - done);

		if (n == 0)
			return 0;
		if (n < 0 && errno != EINTR)
			fail("read");
		if (n > 0)
			done += n;
	}
	return 1;
}

static int reply_fd;
static char out[4 << 20];
static size_t out_len;

static void put(const void *from, size_t len)
{
	if (len > sizeof(out) - out_len)
		fail("a reply that is too long");
	memcpy(out + out_len, from, len);
	out_len += len;
}

static void put_reply(uint32_t kind, const void *from, uint32_t len)
{
	struct reply reply = { kind, len };

	put(&reply, sizeof(reply));
	put(from, len);
}

static void flush_reply(void)
{
	size_t done = 0;

	while (done < out_len) {
		ssize_t n = write(reply_fd, out + done, out_len - done);

		if (n < 0 && errno != EINTR)
			fail("write");
		if (n > 0)
			done += n;
	}
	out_len = 0;
}

static err_t link_output(struct netif *interface, struct pbuf *p)
{
	static char frame[LARGEST];

	(void)interface;
	pbuf_copy_partial(p, frame, p->tot_len, 0);
	put_reply(SENT_FRAME, frame, p->tot_len);
	return ERR_OK;
}

static err_t init_netif(struct netif *interface)
{
	interface->name[0] = 't';
	interface->name[1] = 'p';
	interface->mtu = 1500;
	interface->hwaddr_len = ETH_HWADDR_LEN;
	interface->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_LINK_UP;
	interface->output = etharp_output;
	interface->linkoutput = link_output;
	return ERR_OK;
}

/* lwIP frees a PCB on its own when the connection is over: it is ours while it is in this list. */
static int pcb_is_active(void)
{
	struct tcp_pcb *each;

	for (each = tcp_active_pcbs; each; each = each->next)
		if (each == pcb)
			return 1;
	return 0;
}

static err_t on_received(void *arg, struct tcp_pcb *from, struct pbuf *p, err_t error)
{
	(void)arg;
	(void)from;
	(void)error;
	if (!p)
		fin_received = 1;
	else if (unread)
		pbuf_cat(unread, p);
	else
		unread = p;
	return ERR_OK;
}

static void on_error(void *arg, err_t error)
{
	(void)arg;
	pcb = NULL;
	state.reset |= error != ERR_CLSD;
}

static void adopt(struct tcp_pcb *established)
{
	pcb = established;
	state.established = 1;
	tcp_recv(pcb, on_received);
	tcp_err(pcb, on_error);
}

static err_t on_connected(void *arg, struct tcp_pcb *established, err_t error)
{
	(void)arg;
	(void)error;
	adopt(established);
	return ERR_OK;
}

static err_t on_accepted(void *arg, struct tcp_pcb *established, err_t error)
{
	(void)arg;
	if (error == ERR_OK && !state.established)
		adopt(established);
	return ERR_OK;
}

static void input_frame(const char *bytes, uint32_t len)
{
	/* Not from the pool: in Debian's 2.1.3 its buffers are smaller than pbuf_alloc takes them for. */
	struct pbuf *p = pbuf_alloc(PBUF_RAW, len, PBUF_RAM);

	if (!p || pbuf_take(p, bytes, len) != ERR_OK)
		fail("pbuf_alloc");
	if (netif.input(p, &netif) != ERR_OK)
		pbuf_free(p);
}

static void write_bytes(const char *bytes, uint32_t len)
{
	state.written = 0;
	if (!pcb_is_active())
		return;
	if (len > tcp_sndbuf(pcb))
		len = tcp_sndbuf(pcb);
	if (tcp_write(pcb, bytes, len, TCP_WRITE_FLAG_COPY) == ERR_OK)
		state.written = len;
	tcp_output(pcb);
}

static void read_bytes(uint32_t most)
{
	static char bytes[LARGEST];
	uint16_t len;

	if (!unread)
		return;
	len = unread->tot_len;
	if (len > most)
		len = most;
	pbuf_copy_partial(unread, bytes, len, 0);
	unread = pbuf_free_header(unread, len);
	put_reply(DATA, bytes, len);
	if (pcb_is_active())
		tcp_recved(pcb, len);
}

static void start(int listens, const ip_addr_t *peer)
{
	struct tcp_pcb *new_pcb = tcp_new();

	if (!new_pcb)
		fail("tcp_new");
	if (!listens) {
		pcb = new_pcb;
		tcp_err(pcb, on_error);
		if (tcp_connect(pcb, peer, PORT, on_connected) != ERR_OK)
			fail("tcp_connect");
		return;
	}
	if (tcp_bind(new_pcb, IP_ADDR_ANY, PORT) != ERR_OK)
		fail("tcp_bind");
	new_pcb = tcp_listen(new_pcb);
	if (!new_pcb)
		fail("tcp_listen");
	tcp_accept(new_pcb, on_accepted);
}

static void handle(const struct request *request, const char *bytes, const ip_addr_t *peer)
{
	uint32_t most;

	switch (request->kind) {
	case FRAME:
		input_frame(bytes, request->len);
		break;
	case WRITE:
		write_bytes(bytes, request->len);
		break;
	case READ:
		memcpy(&most, bytes, sizeof(most));
		read_bytes(most);
		break;
	case CLOSE:
		if (pcb_is_active() && tcp_shutdown(pcb, 0, 1) != ERR_OK)
			fail("tcp_shutdown");
		break;
	case ABORT:
		if (pcb_is_active())
			tcp_abort(pcb);
		break;
	case CONNECT:
		start(0, peer);
		break;
	default:
		break;
	}
}

int main(int argc, char **argv)
{
	static char bytes[LARGEST];
	struct request request;
	ip4_addr_t own, mask;
	ip_addr_t peer;
	const uint8_t mac[ETH_HWADDR_LEN] = { 0x52, 0x54, 0, 0, 0, argc == 6 ? atoi(argv[4]) : 0 };

	if (argc != 6 || !ip4addr_aton(argv[2], &own) || !ipaddr_aton(argv[3], &peer))
		fail("usage: endpoint (listen | connect) OWN PEER MAC SEED");
	/* lwIP prints failed assertions to standard output: the replies need another descriptor. */
	reply_fd = dup(1);
	if (reply_fd < 0 || dup2(2, 1) < 0)
		fail("dup");
	srand(atoi(argv[5]));
	lwip_init();
	IP4_ADDR(&mask, 255, 255, 255, 0);
	if (!netif_add(&netif, &own, &mask, NULL, NULL, init_netif, ethernet_input))
		fail("netif_add");
	memcpy(netif.hwaddr, mac, sizeof(mac));
	netif_set_default(&netif);
	netif_set_up(&netif);
	if (!strcmp(argv[1], "listen"))
		start(1, &peer);
	out_len = 0;
	while (read_all(&request, sizeof(request))) {
		if (request.len > sizeof(bytes) || !read_all(bytes, request.len))
			fail("a bad request");
		clock_ms = request.now_ms;
		handle(&request, bytes, &peer);
		sys_check_timeouts();
		state.ended = fin_received && !unread;
		state.closed = state.established && !pcb_is_active();
		state.queued = pcb_is_active() && (pcb->unsent || pcb->unacked);
		state.sleep_ms = sys_timeouts_sleeptime();
		put_reply(STATE, &state, sizeof(state));
		flush_reply();
	}
	return 0;
}
