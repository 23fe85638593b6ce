/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Set by the loader before the programs are verified: constants to the verifier, which drops dead branches. */
#ifndef FLOODWAY_CONFIG_H
#define FLOODWAY_CONFIG_H

#include "kernel.h"

struct config {
	__u8 cubic; /* the shadow window grows and is cut as in CUBIC instead of Reno */
	__u8 plain; /* no flow ever goes online */
	__u8 reads_names; /* the reader of names in SYN-ACKs is attached, or will be */
	__u8 reserved;
	__u32 initial_window; /* segments; 0 is the kernel's own (10, or the route's initcwnd) */
	__u64 nonce; /* random, never 0: what notices must bear to be believed */
	__u64 previous[TCP_CA_NAME_MAX / 8]; /* the default congestion control of before, padded with zeros */
};

/* The reason for a section of its own: its bytes are exactly this structure. */
const volatile struct config config SEC(".rodata.config") = {};

#endif
