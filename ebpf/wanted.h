/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Which frames somebody captures, and where they go: what steer.bpf.c, police.bpf.c and
 * capture.bpf.c have in common.
 */
#ifndef RNIC_WANTED_H
#define RNIC_WANTED_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "capture.h"
#include "steer.h"

#define CAPTURE_ENOENT 2
#define CAPTURE_ENOSPC 28

/*
 * In a section of its own, which is a map that the programs of a device share. Reading it takes one
 * instruction.
 */
struct capture_wanted capture_wanted SEC(".data.capture") = {};

/* Only the helpers that write to perf rings can copy frames of several buffers. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} capture_frames SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CAPTURE_LOSSES);
	__type(key, __u32);
	__type(value, __u64);
} capture_lost SEC(".maps");

/* Takes the result of a helper that copies a frame to the ring of this CPU. */
static __always_inline void copied(long error)
{
	__u32 why = error == -CAPTURE_ENOSPC ? CAPTURE_FULL : CAPTURE_UNREADABLE;
	__u64 *counter;

	if (!error)
		return;
	counter = bpf_map_lookup_elem(&capture_lost, &why);
	if (counter)
		*counter += 1;
	/* The kernel removes the rings of a process that ends, in whatever way. */
	if (error == -CAPTURE_ENOENT)
		capture_wanted.kinds = 0;
}

static __always_inline int is_wanted_peer(__u8 family, const __be32 *address)
{
	const struct capture_wanted *wanted = &capture_wanted;

	if (!wanted->family)
		return 1;
	return wanted->family == family && !((address[0] ^ wanted->peer[0]) & wanted->mask[0]) &&
	       !((address[1] ^ wanted->peer[1]) & wanted->mask[1]) && !((address[2] ^ wanted->peer[2]) & wanted->mask[2]) &&
	       !((address[3] ^ wanted->peer[3]) & wanted->mask[3]);
}

static __always_inline __u32 number(const __u8 *port)
{
	return port[0] << 8 | port[1];
}

/*
 * Returns whether a frame is wanted, and says in its record how much of it. One that is no TCP
 * segment has the family 0: neither a TCP port nor a peer.
 */
static __always_inline int is_wanted(struct capture_record *record, const struct steer_key *to, const __be32 *from,
				     const __u8 *source_port)
{
	const struct capture_wanted *wanted = &capture_wanted;
	__u32 snap = wanted->snap < CAPTURE_MAX_SNAP ? wanted->snap : CAPTURE_MAX_SNAP;

	record->captured = record->len < snap ? record->len : snap;
	if (wanted->port && record->port != wanted->port && record->to_port != wanted->port)
		return 0;
	if (wanted->tcp_port &&
	    (!to->family || (number(to->port) != wanted->tcp_port && number(source_port) != wanted->tcp_port)))
		return 0;
	return is_wanted_peer(to->family, record->kind == CAPTURE_RECEIVED ? from : to->address);
}

#endif
