/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* How steer.bpf.c and police.bpf.c show their frames to somebody who captures them. */
#ifndef RNIC_TAP_H
#define RNIC_TAP_H

#include "parse.h"
#include "wanted.h"

/* What became of a frame. */
struct tapped {
	__u32 kind; /* as in capture_record, like those below */
	__u32 port;
	__u32 to_port;
	__u32 action;
	__u32 verdict;
};

/* A function of its own, so that what it needs costs nothing while nobody captures. */
static __noinline int copy_out(struct xdp_md *context, const struct tapped *tapped)
{
	struct capture_record record = {
		.time = bpf_ktime_get_ns(),
		.len = bpf_xdp_get_buff_len(context),
		.port = tapped->port,
		.to_port = tapped->to_port,
		.kind = tapped->kind,
		.action = tapped->action,
		.verdict = tapped->verdict,
	};
	struct steer_key to = {};
	__be32 from[4] = {};
	struct headers headers = {};

	if (parse(context, &to, from, &headers) != STEER_REDIRECTED)
		to.family = 0;
	if (is_wanted(&record, &to, from, headers.source_port))
		copied(bpf_perf_event_output(context, &capture_frames, BPF_F_CURRENT_CPU | (__u64)record.captured << 32,
					     &record, sizeof(record)));
	return 0;
}

/* Shows a frame to whoever captures. */
static __always_inline void tap(struct xdp_md *context, __u32 kind, __u32 port, __u32 to_port, int action, __u32 verdict)
{
	struct tapped tapped;

	if (!(capture_wanted.kinds & kind))
		return;
	tapped = (struct tapped){ .kind = kind, .port = port, .to_port = to_port, .action = action, .verdict = verdict };
	copy_out(context, &tapped);
}

#endif
