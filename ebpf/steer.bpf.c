// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Steers the TCP segments of reserved local ports into AF_XDP sockets and passes everything else to the
 * kernel untouched. Never edits a frame, never drops one.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "steer.h"

#define VLAN_ID 0x0fff
#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_FRAGMENT_OFFSET 0x1fff

struct vlan_tag {
	__be16 control;
	__be16 ethertype;
};

/* The ports are first in the TCP header; the rest does not matter here. */
struct tcp_ports {
	__u8 source[2];
	__u8 destination[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STEER_MAX_ENTRIES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct steer_key);
	__type(value, __u32);
} steer_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STEER_PORTS);
	__type(key, __u32);
	__type(value, struct steer_port);
} steer_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STEER_VLANS);
	__type(key, __u32);
	__type(value, struct steer_link);
} steer_links SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, STEER_MAX_PEERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct steer_peer);
	__type(value, __u32);
} steer_peers SEC(".maps");

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

static __always_inline void count(__u32 verdict)
{
	__u64 *counter = bpf_map_lookup_elem(&steer_counters, &verdict);

	if (counter)
		*counter += 1;
}

/*
 * Returns octets of the frame from `at` on, in place or copied to `room`: only the first buffer of a frame can be read in place,
 * and a driver may put any number of octets there. Returns NULL if the frame is too short.
 */
static __always_inline void *octets(struct xdp_md *context, __u32 at, void *room, __u32 len)
{
	void *found = (void *)(long)context->data + at;

	if (found + len <= (void *)(long)context->data_end)
		return found;
	return bpf_xdp_load_bytes(context, at, room, len) ? NULL : room;
}

/*
 * Reads the VLAN and the destination MAC address of a frame, and moves on past the Ethernet header and a VLAN tag. Returns the
 * EtherType (host order), 0 if truncated. Frames with more tags, or with a provider's (802.1ad), are left to the kernel: they are
 * for devices on VLAN devices.
 */
static __always_inline __u16 parse_ethernet(struct xdp_md *context, __u32 *at, struct steer_key *key, __be16 *mac)
{
	struct ethhdr room __attribute__((aligned(4))), *ethernet = octets(context, *at, &room, sizeof(room));
	struct vlan_tag tag_room, *tag;
	const __be16 *destination = (const void *)ethernet;

	if (!ethernet)
		return 0;
	mac[0] = destination[0];
	mac[1] = destination[1];
	mac[2] = destination[2];
	*at += sizeof(*ethernet);
	if (ethernet->h_proto != bpf_htons(ETH_P_8021Q))
		return bpf_ntohs(ethernet->h_proto);

	tag = octets(context, *at, &tag_room, sizeof(tag_room));
	if (!tag)
		return 0;
	key->vlan = bpf_ntohs(tag->control) & VLAN_ID;
	*at += sizeof(*tag);
	return bpf_ntohs(tag->ethertype);
}

/* Fills in family and addresses, and moves on to the TCP header. Returns STEER_REDIRECTED to go on, or why the frame passes. */
static __always_inline int parse_ipv4(struct xdp_md *context, __u32 *at, struct steer_key *key, __be32 *peer)
{
	struct iphdr room, *ip = octets(context, *at, &room, sizeof(room));
	__u32 header_len;

	if (!ip)
		return STEER_TRUNCATED;
	header_len = ip->ihl * 4;
	if (ip->version != 4 || header_len < sizeof(*ip))
		return STEER_TRUNCATED;
	if (ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET))
		return STEER_FRAGMENT;
	if (ip->protocol != IPPROTO_TCP)
		return STEER_NOT_TCP;

	key->family = STEER_IPV4;
	__builtin_memcpy(key->address, &ip->daddr, sizeof(ip->daddr));
	__builtin_memcpy(peer, &ip->saddr, sizeof(ip->saddr));
	*at += header_len;
	return STEER_REDIRECTED;
}

static __always_inline int parse_ipv6(struct xdp_md *context, __u32 *at, struct steer_key *key, __be32 *peer)
{
	struct ipv6hdr room, *ip = octets(context, *at, &room, sizeof(room));

	if (!ip)
		return STEER_TRUNCATED;
	if (ip->version != 6)
		return STEER_TRUNCATED;
	if (ip->nexthdr == IPPROTO_FRAGMENT)
		return STEER_FRAGMENT;
	if (ip->nexthdr != IPPROTO_TCP)
		return STEER_NOT_TCP;

	key->family = STEER_IPV6;
	__builtin_memcpy(key->address, &ip->daddr, sizeof(ip->daddr));
	__builtin_memcpy(peer, &ip->saddr, sizeof(ip->saddr));
	*at += sizeof(*ip);
	return STEER_REDIRECTED;
}

/* Reads the local address, VLAN and port of a frame into the key, and its destination MAC address and the peer's address. */
static __always_inline int classify(struct xdp_md *context, struct steer_key *key, __be32 *peer, __be16 *mac)
{
	struct tcp_ports room, *ports;
	__u32 at = 0;
	int verdict;

	switch (parse_ethernet(context, &at, key, mac)) {
	case ETH_P_IP:
		verdict = parse_ipv4(context, &at, key, peer);
		break;
	case ETH_P_IPV6:
		verdict = parse_ipv6(context, &at, key, peer);
		break;
	case 0:
		verdict = STEER_TRUNCATED;
		break;
	default:
		verdict = STEER_NOT_TCP;
	}
	if (verdict != STEER_REDIRECTED)
		return verdict;

	ports = octets(context, at, &room, sizeof(room));
	if (!ports)
		return STEER_TRUNCATED;
	__builtin_memcpy(key->port, ports->destination, sizeof(key->port));
	return STEER_REDIRECTED;
}

static __always_inline int is_same(const __be32 *one, const __be32 *other)
{
	return !((one[0] ^ other[0]) | (one[1] ^ other[1]) | (one[2] ^ other[2]) | (one[3] ^ other[3]));
}

/* Returns STEER_REDIRECTED if an entry is for a peer, else STEER_STRANGER. */
static __always_inline int let_in(__u32 peers, const struct steer_key *key, const __be32 *address)
{
	struct steer_peer peer = { .bits = 8 * (sizeof(peer.local) + sizeof(peer.address)), .local = *key };

	if (peers == STEER_ALL_PEERS)
		return STEER_REDIRECTED;
	__builtin_memcpy(peer.address, address, sizeof(peer.address));
	return bpf_map_lookup_elem(&steer_peers, &peer) ? STEER_REDIRECTED : STEER_STRANGER;
}

/*
 * Returns STEER_REDIRECTED if the address and port, or the port at any address, are steered for this peer, or else why not.
 * It looks into steer_map only if the port has more than the one entry of steer_ports.
 */
static __always_inline int look_up(struct steer_key *key, const __be32 *peer)
{
	__u32 *peers;
	__u32 number = key->port[0] << 8 | key->port[1];
	struct steer_port *port = bpf_map_lookup_elem(&steer_ports, &number);

	if (!port)
		return STEER_NOT_STEERED;
	if (port->family == key->family &&
	    (port->any_address || (port->vlan == key->vlan && is_same(port->address, key->address))))
		return STEER_REDIRECTED;
	if (!port->others)
		return STEER_NOT_STEERED;

	peers = bpf_map_lookup_elem(&steer_map, key);
	if (peers)
		return let_in(*peers, key, peer);
	__builtin_memset(key->address, 0, sizeof(key->address));
	key->vlan = 0;
	peers = bpf_map_lookup_elem(&steer_map, key);
	return peers ? let_in(*peers, key, peer) : STEER_NOT_STEERED;
}

static __always_inline int is_mac(const __be16 *one, const __be16 *other)
{
	return !((one[0] ^ other[0]) | (one[1] ^ other[1]) | (one[2] ^ other[2]));
}

/*
 * Returns whether the kernel would accept a frame of a VLAN to a MAC address. Frames for other hosts arrive if a device is
 * promiscuous or a switch floods. Frames for a group are not TCP's.
 */
static __always_inline int is_for_us(__u32 vlan, const __be16 *mac)
{
	struct steer_link *link = bpf_map_lookup_elem(&steer_links, &vlan);

	return link && link->known && (is_mac(link->mac[0], mac) || is_mac(link->mac[1], mac));
}

SEC("xdp.frags")
int rnic_steer(struct xdp_md *context)
{
	struct steer_key key = {};
	__be32 peer[4] = {};
	__be16 mac[3];
	int action;
	int verdict = classify(context, &key, peer, mac);
	__u32 vlan = key.vlan;

	if (verdict != STEER_REDIRECTED) {
		count(verdict);
		return XDP_PASS;
	}
	verdict = look_up(&key, peer);
	if (verdict != STEER_REDIRECTED) {
		count(verdict);
		return XDP_PASS;
	}
	if (!is_for_us(vlan, mac)) {
		count(STEER_OTHER_HOST);
		return XDP_PASS;
	}

	/* The low bits of the flags are the verdict if the queue has no socket. */
	action = bpf_redirect_map(&steer_sockets, context->rx_queue_index, XDP_PASS);
	count(action == XDP_REDIRECT ? STEER_REDIRECTED : STEER_NO_SOCKET);
	return action;
}

char _license[] SEC("license") = "Dual MIT/GPL";
