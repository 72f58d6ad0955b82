// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Shows what AF_XDP sockets send on a device that a process has for itself, to somebody who
 * captures it: it passes none of our programs. These stand ahead of or behind functions of the
 * kernel, as long as somebody captures.
 */
#include <linux/types.h>

/*
 * The first octets of a frame, from which its headers are read: an Ethernet header with a tag, the
 * longest of IPv4, TCP's ports.
 */
#define COPY_LEN 96

struct headers_copy {
	__u32 len;
	__u8 octets[COPY_LEN];
};

static inline __attribute__((always_inline)) void *octets(struct headers_copy *copy, __u32 at, void *room, __u32 len)
{
	return at > COPY_LEN - len || at + len > copy->len ? (void *)0 : copy->octets + at;
}

#define PARSE_SOURCE struct headers_copy
#include "parse.h"
#include "wanted.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define AF_XDP 44
#define QUEUE_STOPPED 5 /* bits of netdev_queue.state: by the driver, or frozen */
#define XDP_PKT_CONTD 1 /* in the options of a descriptor: the frame goes on in the next one */
#define XSK_ADDRESS ((1ULL << 48) - 1) /* in a descriptor; the rest is an offset to add */

/*
 * As much of the kernel's structures as is read. The loader adjusts the offsets to the running
 * kernel.
 */
#define KERNEL_STRUCTURE __attribute__((preserve_access_index))

struct ns_common {
	unsigned int inum;
} KERNEL_STRUCTURE;

struct net {
	struct ns_common ns;
} KERNEL_STRUCTURE;

typedef struct {
	struct net *net;
} KERNEL_STRUCTURE possible_net_t;

struct netdev_queue {
	unsigned long state;
} KERNEL_STRUCTURE;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
	struct netdev_queue *_tx;
} KERNEL_STRUCTURE;

struct sock_common {
	unsigned short skc_family;
} KERNEL_STRUCTURE;

struct sock {
	struct sock_common __sk_common;
} KERNEL_STRUCTURE;

struct xdp_sock {
	struct sock sk;
	struct net_device *dev;
} KERNEL_STRUCTURE;

struct sk_buff {
	struct sock *sk;
	unsigned int len;
	unsigned int data_len;
	unsigned char *data;
} KERNEL_STRUCTURE;

struct xsk_buff_pool {
	struct net_device *netdev;
	void *addrs;
	struct xdp_desc *tx_descs;
} KERNEL_STRUCTURE;

struct xdp_desc {
	__u64 addr;
	__u32 len;
	__u32 options;
};

/* The device, and the inode number of its network namespace. */
const volatile __u32 capture_ifindex = 0;
const volatile __u32 capture_netns = 0;

/* Too long for the stack. Each program has its own, because one may interrupt another. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct headers_copy);
} capture_headers SEC(".maps");

/* A frame that a device in zero-copy mode takes, which may lie in several descriptors. */
struct gathered {
	struct capture_record record;
	/* The verifier follows a mask: the longest copy at the highest offset. */
	__u8 octets[0x10000 + 0x2000];
};

#define GATHERED_MOST 0xffff /* octets of a frame */
#define GATHERED_PIECE 0x1fff /* a descriptor has a page at most */

/* By the pool of the queue. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STEER_MAX_QUEUES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct gathered);
} capture_gathered SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gathered);
} capture_nothing SEC(".maps");

/* Not 0 while this CPU takes a batch of descriptors. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} capture_in_batch SEC(".maps");

static const __u32 ONLY = 0;

static __always_inline int is_wanted_device(struct net_device *device)
{
	return (capture_wanted.kinds & CAPTURE_SENT) && BPF_CORE_READ(device, ifindex) == capture_ifindex &&
	       BPF_CORE_READ(device, nd_net.net, ns.inum) == capture_netns;
}

/*
 * Makes the record of a frame that begins at `data`, with as many octets as `len` there. Returns
 * whether it is wanted.
 */
static __always_inline int describe(struct capture_record *record, const void *data, __u64 len)
{
	struct headers_copy *copy = bpf_map_lookup_elem(&capture_headers, &ONLY);
	struct steer_key to = {};
	__be32 from[4] = {};
	struct headers headers = {};

	if (!copy)
		return 0;
	record->time = bpf_ktime_get_ns();
	record->kind = CAPTURE_SENT;
	record->action = CAPTURE_NOT_JUDGED;
	record->verdict = CAPTURE_NOT_JUDGED;
	len = len < COPY_LEN ? len : COPY_LEN;
	/* The verifier cannot follow what the compiler makes of that. */
	barrier_var(len);
	if (len > COPY_LEN)
		return 0;
	copy->len = bpf_probe_read_kernel(copy->octets, len, data) ? 0 : len;
	if (parse(copy, &to, from, &headers) != STEER_REDIRECTED)
		to.family = 0;
	return is_wanted(record, &to, from, headers.source_port);
}

/*
 * Returns the device of the AF_XDP socket that sends a frame, or NULL if another socket sends it.
 */
static __always_inline struct net_device *device_of(struct sk_buff *skb)
{
	struct xdp_sock *socket = (void *)BPF_CORE_READ(skb, sk);

	if (!socket || BPF_CORE_READ(socket, sk.__sk_common.skc_family) != AF_XDP)
		return NULL;
	return BPF_CORE_READ(socket, dev);
}

/*
 * Copy mode: the frame goes to the driver, unless the queue is stopped. Then the socket tries
 * again.
 */
SEC("?fentry/__dev_direct_xmit")
int BPF_PROG(capture_copied, struct sk_buff *skb, __u16 queue)
{
	struct capture_record record = { .len = BPF_CORE_READ(skb, len) };
	struct net_device *device = device_of(skb);
	struct netdev_queue *queues;

	if (!device || !is_wanted_device(device))
		return 0;
	queues = (void *)BPF_CORE_READ(device, _tx) + queue * bpf_core_type_size(struct netdev_queue);
	if (BPF_CORE_READ(queues, state) & QUEUE_STOPPED)
		return 0;
	if (describe(&record, BPF_CORE_READ(skb, data), record.len - BPF_CORE_READ(skb, data_len)))
		copied(bpf_skb_output(skb, &capture_frames, BPF_F_CURRENT_CPU | (__u64)record.captured << 32, &record,
				      sizeof(record)));
	return 0;
}

/* Returns the frame to which the next descriptor of a queue belongs. */
static __always_inline struct gathered *gathered(struct xsk_buff_pool *pool)
{
	__u64 key = (__u64)pool;
	struct gathered *nothing, *frame = bpf_map_lookup_elem(&capture_gathered, &key);

	if (frame)
		return frame;
	nothing = bpf_map_lookup_elem(&capture_nothing, &ONLY);
	if (nothing)
		bpf_map_update_elem(&capture_gathered, &key, nothing, BPF_ANY);
	return bpf_map_lookup_elem(&capture_gathered, &key);
}

/* Adds what a descriptor has to its frame. Returns 0 if it could be read. */
static __always_inline long gather(struct gathered *frame, struct xsk_buff_pool *pool, const struct xdp_desc *descriptor)
{
	__u64 offset = (descriptor->addr & XSK_ADDRESS) + (descriptor->addr >> 48);
	__u32 at = frame->record.len, len = descriptor->len;

	if (at > GATHERED_MOST || len > GATHERED_PIECE)
		return -1;
	frame->record.len += len;
	barrier_var(at);
	barrier_var(len);
	return bpf_probe_read_kernel(frame->octets + (at & GATHERED_MOST), len & GATHERED_PIECE,
				     BPF_CORE_READ(pool, addrs) + offset);
}

/* Zero-copy mode: the driver takes a descriptor. */
static __always_inline void capture_descriptor(void *ctx, struct xsk_buff_pool *pool, const struct xdp_desc *from)
{
	struct gathered *frame = gathered(pool);
	struct xdp_desc descriptor;
	__u32 len;

	if (!frame || bpf_probe_read_kernel(&descriptor, sizeof(descriptor), from) || gather(frame, pool, &descriptor)) {
		copied(-1);
		return;
	}
	if (descriptor.options & XDP_PKT_CONTD)
		return;
	len = frame->record.len;
	frame->record = (struct capture_record){ .len = len };
	if (describe(&frame->record, frame->octets, len)) {
		len = frame->record.captured;
		barrier_var(len);
		if (len <= CAPTURE_MAX_SNAP)
			copied(bpf_perf_event_output(ctx, &capture_frames, BPF_F_CURRENT_CPU, frame,
						     sizeof(frame->record) + len));
	}
	frame->record.len = 0;
}

static __always_inline void set_in_batch(__u32 value)
{
	__u32 *in_batch = bpf_map_lookup_elem(&capture_in_batch, &ONLY);

	if (in_batch)
		*in_batch = value;
}

/* Zero-copy mode, descriptor by descriptor. Some batches are taken so too. */
SEC("?fexit/xsk_tx_peek_desc")
int BPF_PROG(capture_descriptor_taken, struct xsk_buff_pool *pool, struct xdp_desc *descriptor, int taken)
{
	__u32 *in_batch = bpf_map_lookup_elem(&capture_in_batch, &ONLY);

	if ((taken & 1) && in_batch && !*in_batch && is_wanted_device(BPF_CORE_READ(pool, netdev)))
		capture_descriptor(ctx, pool, descriptor);
	return 0;
}

SEC("?fentry/xsk_tx_peek_release_desc_batch")
int BPF_PROG(capture_batch_begins)
{
	set_in_batch(1);
	return 0;
}

struct batch {
	void *ctx;
	struct xsk_buff_pool *pool;
	struct xdp_desc *descriptors;
};

static long capture_of_batch(__u64 index, struct batch *batch)
{
	capture_descriptor(batch->ctx, batch->pool, batch->descriptors + index);
	return 0;
}

/* Zero-copy mode, a batch. */
SEC("?fexit/xsk_tx_peek_release_desc_batch")
int BPF_PROG(capture_batch_taken, struct xsk_buff_pool *pool, __u32 most, __u32 taken)
{
	struct batch batch = { .ctx = ctx, .pool = pool };

	set_in_batch(0);
	if (!is_wanted_device(BPF_CORE_READ(pool, netdev)))
		return 0;
	batch.descriptors = BPF_CORE_READ(pool, tx_descs);
	bpf_loop(taken, capture_of_batch, &batch, 0);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
