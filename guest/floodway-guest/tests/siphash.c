/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* bpf/siphash.h on the host, against what floodway_wire::name computes of the same bytes. Run by siphash.rs. */
#include "../bpf/siphash.h"

#include <stdio.h>
#include <string.h>

static int failures;

static void check(const char *what, __u64 hash, const unsigned char *expected, size_t len)
{
	if (memcmp(&hash, expected, len) == 0)
		return;
	printf("%s differs\n", what);
	failures++;
}

int main(void)
{
	/* The test `bytes_of_an_option` there. */
	static const unsigned char nonce[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	static const unsigned char flow[40] = {
		4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1,
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2, 0x9c, 0x40, 0, 80,
	};
	static const unsigned char name[8] = { 0x3e, 0xa3, 0xd7, 0x3a, 0xd5, 0x03, 0xaa, 0x00 };
	static const unsigned char numbers[16] = {
		0x0a, 0x0b, 0x0c, 0x0d, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
	};
	static const unsigned char tag[4] = { 0x36, 0x49, 0x63, 0xed };
	__u64 key, words[5];

	memcpy(&key, nonce, sizeof(key));
	memcpy(words, flow, sizeof(flow));
	check("name", siphash(key, words, 5), name, sizeof(name));
	memcpy(words, name, sizeof(name));
	memcpy(words + 1, numbers, sizeof(numbers));
	check("tag", siphash(key, words, 3), tag, sizeof(tag));
	return failures;
}
