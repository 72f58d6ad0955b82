// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Steers the TCP segments of reserved local ports, and passes everything else to the kernel
 * untouched. Never edits a frame. A process that has the device for itself gets them in its AF_XDP
 * sockets. If the device is shared, each client gets those of its ports on the other end of a veth
 * pair, or, if its port is a hardware queue, in its socket: it has only what arrives at that queue.
 * What arrives for it at another one is dropped, because the kernel would end the connection, and
 * nothing else ever is.
 */
#include "esp.h"
#include "parse.h"
#include "tables.h"
#include "tap.h"

/* Not 0 if the device is shared. Otherwise the verifier removes all that is for clients. */
const volatile __u32 steer_shared = 0;

/* Not 0 if associations of ESP are steered. Otherwise the verifier removes what is for them. */
const volatile __u32 steer_esp = 0;

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, STEER_MAX_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} steer_sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STEER_VERDICTS);
	__type(key, __u32);
	__type(value, __u64);
} steer_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STEER_MAX_UNTAGGED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct steer_address);
	__type(value, __u32);
} steer_untagged SEC(".maps");

static __always_inline void count(__u32 verdict)
{
	__u64 *counter = bpf_map_lookup_elem(&steer_counters, &verdict);

	if (counter)
		*counter += 1;
}

/*
 * Completes the key of a frame with its VLAN, and returns what this host has there. Many NICs
 * remove the tag ahead of the program, and most do not tell it the VLAN
 * (bpf_xdp_metadata_rx_vlan_tag is there for few, and only in a program that is bound to the
 * device). With such a NIC a frame without a tag is of the one VLAN that has its destination. With
 * any other it was sent without one, and no entry in a VLAN is for it.
 */
static __always_inline struct steer_link *find_vlan(struct steer_key *key)
{
	struct steer_link *link = find_link(key->vlan);
	struct steer_address address = { .family = key->family };
	__u32 *vlan;

	if (!link || link->known != STEER_UNTAGS)
		return link;
	__builtin_memcpy(address.address, key->address, sizeof(address.address));
	vlan = bpf_map_lookup_elem(&steer_untagged, &address);
	if (!vlan)
		return link;
	key->vlan = *vlan;
	return find_link(*vlan);
}

/*
 * Returns STEER_REDIRECTED if a frame is of ESP that is steered and ours, or why it passes. Sets
 * the port of the target if the device is shared.
 */
static __always_inline int judge_esp(struct xdp_md *context, int shared, int verdict, struct steer_target *target)
{
	struct steer_key key = {};
	__be32 source[4] = {};
	struct headers headers;
	struct steer_sa_use *use;

	if (verdict != STEER_NOT_TCP && verdict != STEER_FRAGMENT)
		return verdict;
	use = find_steered(context, &key, source, &headers);
	if (!use)
		return verdict;
	if (!is_ours(find_vlan(&key), headers.destination_mac))
		return STEER_OTHER_HOST;
	if (!shared)
		return STEER_REDIRECTED;
	target->port = use->port;
	/* What others send with its SPI, the client drops, and the kernel would have to. */
	if (is_same(use->source, source)) {
		__sync_fetch_and_add(&use->packets, 1);
		__sync_fetch_and_add(&use->octets, bpf_xdp_get_buff_len(context));
	}
	return STEER_REDIRECTED;
}

/* Returns STEER_REDIRECTED if a frame goes to the target, or why it passes. */
static __always_inline int judge(struct xdp_md *context, int shared, struct steer_target *target)
{
	struct steer_key key = {};
	__be32 peer[4] = {};
	struct headers headers;
	struct steer_link *link;
	int verdict = parse(context, &key, peer, &headers);

	if (verdict != STEER_REDIRECTED)
		return steer_esp ? judge_esp(context, shared, verdict, target) : verdict;
	/* Clients lease these too, for what police turns around on this host. */
	if (shared && (is_loopback(key.family, key.address) || is_loopback(key.family, peer)))
		return STEER_LOOPBACK;
	link = find_vlan(&key);
	if (!find(&key, shared, 0, target))
		return STEER_NOT_STEERED;
	if (shared && target->port & STEER_PROTECTED && steer_esp)
		return STEER_UNPROTECTED;
	verdict = let_in(target->peers, &key, peer);
	if (verdict != STEER_REDIRECTED)
		return verdict;
	if (shared && target->port && !may_speak(target->port & STEER_PORT_MASK, key.family, peer))
		return STEER_STRANGER;
	return is_ours(link, headers.destination_mac) ? STEER_REDIRECTED : STEER_OTHER_HOST;
}

/*
 * Sends a frame to the client of a shared device that has leased its destination. Returns the
 * action.
 */
static __always_inline int to_client(struct xdp_md *context, __u32 port)
{
	__u32 queue = port >> STEER_QUEUE_SHIFT;
	int action;

	/* The low bits of the flags are the action if the map has no such entry. */
	if (!queue) {
		action = bpf_redirect_map(&steer_devices, port, XDP_PASS);
	} else if (queue - 1 == context->rx_queue_index) {
		action = bpf_redirect_map(&steer_sockets, context->rx_queue_index, XDP_PASS);
	} else {
		count(STEER_WRONG_QUEUE);
		return XDP_DROP;
	}
	count(action == XDP_REDIRECT ? STEER_TO_PORT : STEER_NO_PORT);
	return action;
}

SEC("xdp.frags")
int rnic_steer(struct xdp_md *context)
{
	int shared = steer_shared;
	struct steer_target target = { .port = STEER_NIC };
	int action, verdict = judge(context, shared, &target);

	if (verdict != STEER_REDIRECTED) {
		count(verdict);
		/* The kernel would answer it with RST, in the clear too. */
		return verdict == STEER_UNPROTECTED && steer_esp ? XDP_DROP : XDP_PASS;
	}

	if (shared && target.port) {
		action = to_client(context, target.port);
	} else {
		action = bpf_redirect_map(&steer_sockets, context->rx_queue_index, XDP_PASS);
		count(action == XDP_REDIRECT ? STEER_REDIRECTED : STEER_NO_SOCKET);
	}
	/* What passes, the kernel shows. */
	if (action != XDP_PASS)
		tap(context, CAPTURE_RECEIVED, shared ? target.port & STEER_PORT_MASK : 0, 0, action, CAPTURE_NOT_JUDGED);
	return action;
}

char _license[] SEC("license") = "Dual MIT/GPL";
