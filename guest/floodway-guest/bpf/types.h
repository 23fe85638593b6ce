/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What arithmetic needs, on any machine: tests compile it for the host. */
#ifndef FLOODWAY_TYPES_H
#define FLOODWAY_TYPES_H

#include <linux/types.h>
#include <stdbool.h>

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

static __always_inline __u32 min32(__u32 a, __u32 b)
{
	return a < b ? a : b;
}

static __always_inline __u32 max32(__u32 a, __u32 b)
{
	return a > b ? a : b;
}

#endif
