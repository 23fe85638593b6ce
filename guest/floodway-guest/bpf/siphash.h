/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* SipHash-2-4 (Aumasson and Bernstein, 2012) of whole words, which are in memory as the bytes of a message are. */
#ifndef FLOODWAY_SIPHASH_H
#define FLOODWAY_SIPHASH_H

#include "types.h"

struct siphash {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 rotate_left(__u64 word, __u32 bits)
{
	return word << bits | word >> (64 - bits);
}

/* A word of a message is its bytes, the lowest first, whatever the machine's order. */
static __always_inline __u64 little_endian(__u64 word)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	return __builtin_bswap64(word);
#else
	return word;
#endif
}

static __always_inline void siphash_round(struct siphash *s)
{
	s->v0 += s->v1;
	s->v2 += s->v3;
	s->v1 = rotate_left(s->v1, 13) ^ s->v0;
	s->v3 = rotate_left(s->v3, 16) ^ s->v2;
	s->v0 = rotate_left(s->v0, 32);
	s->v2 += s->v1;
	s->v0 += s->v3;
	s->v1 = rotate_left(s->v1, 17) ^ s->v2;
	s->v3 = rotate_left(s->v3, 21) ^ s->v0;
	s->v2 = rotate_left(s->v2, 32);
}

static __always_inline void siphash_word(struct siphash *s, __u64 word)
{
	s->v3 ^= word;
	siphash_round(s);
	siphash_round(s);
	s->v0 ^= word;
}

/* The key is two words as well, the second of which is always 0. The result is in memory as its bytes are. */
static __always_inline __u64 siphash(__u64 key, const __u64 *words, __u32 count)
{
	struct siphash s = {
		.v0 = little_endian(key) ^ 0x736f6d6570736575ULL,
		.v1 = 0x646f72616e646f6dULL,
		.v2 = little_endian(key) ^ 0x6c7967656e657261ULL,
		.v3 = 0x7465646279746573ULL,
	};

	for (__u32 i = 0; i < count; i++)
		siphash_word(&s, little_endian(words[i]));
	siphash_word(&s, (__u64)count * 8 << 56);
	s.v2 ^= 0xff;
	for (int i = 0; i < 4; i++)
		siphash_round(&s);
	return little_endian(s.v0 ^ s.v1 ^ s.v2 ^ s.v3);
}

#endif
