/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What the programs write for those who capture, and are told by them, shared with
 * rnic-xdp/src/capture/layout.rs.
 */
#ifndef RNIC_CAPTURE_H
#define RNIC_CAPTURE_H

#include <linux/types.h>

/*
 * The most octets of a frame that are captured: with its record they fit an entry of a perf ring,
 * which has less than 64 KiB.
 */
#define CAPTURE_MAX_SNAP 65280

/* Values of capture_record.kind, and bits of capture_wanted.kinds. */
#define CAPTURE_RECEIVED 1
#define CAPTURE_SENT 2

/* capture_record.action and capture_record.verdict where no program has judged the frame. */
#define CAPTURE_NOT_JUDGED 255

/* A frame, ahead of its octets. */
struct capture_record {
	__u64 time;     /* nanoseconds of CLOCK_MONOTONIC */
	__u32 len;      /* of the whole frame */
	__u32 captured; /* octets of it that follow */
	__u32 port;     /* of the client that receives or sends it; 0: the process that has the device for itself */
	__u32 to_port;  /* of the client of this host to which it is turned around, or 0 */
	__u8 kind;      /* CAPTURE_RECEIVED or CAPTURE_SENT */
	__u8 action;    /* enum xdp_action */
	__u8 verdict;   /* enum police_verdict, of frames that clients send */
	__u8 reserved[5]; /* zero */
};

/* Which frames are captured. */
struct capture_wanted {
	__u32 kinds;    /* CAPTURE_RECEIVED, CAPTURE_SENT or both; 0: nobody captures */
	__u32 snap;     /* the most octets of a frame, at most CAPTURE_MAX_SNAP */
	__u32 port;     /* of the client; 0: all */
	__u32 tcp_port; /* local or remote, in host order; 0: all */
	__u32 family;   /* of the peer, as in steer_key; 0: all */
	__be32 peer[4]; /* its address, as in steer_key, */
	__be32 mask[4]; /* and the bits of it that count */
};

/* Why frames are lost: index into capture_lost, one slot per CPU. */
enum capture_loss {
	CAPTURE_FULL = 0,       /* the ring was full */
	CAPTURE_UNREADABLE = 1, /* the kernel could not copy the frame, or its CPU has no ring */
	CAPTURE_LOSSES = 2,
};

#endif
