/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* How headers are read: what steer.bpf.c, police.bpf.c and capture.bpf.c have in common. */
#ifndef RNIC_PARSE_H
#define RNIC_PARSE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "steer.h"

#define VLAN_ID 0x0fff
#define VLAN_PRIORITY 0xf000 /* with the bit that makes a frame eligible to be dropped first */
#define DSCP 0xfc /* of the octet of the traffic class; the others are ECN */
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

/*
 * What the headers of a frame say besides its addresses. No pointer to it is handed to the kernel,
 * so that what a program does not use costs it nothing.
 */
struct headers {
	__be16 destination_mac[3];
	__be16 source_mac[3];
	__u8 source_port[2];
	__u8 hop_limit;      /* TTL of IPv4 */
	__u32 priority;      /* not 0: the VLAN tag or the IP header asks for another service than the default one */
	__u32 ip_at;         /* where the IP header begins */
	__u32 ip_header_len; /* with options */
	__u32 ip_len;        /* of header and payload, as the IP header says */
};

/* What frames are read from. capture.bpf.c has its own, with its own octets(). */
#ifndef PARSE_SOURCE
#define PARSE_SOURCE struct xdp_md

/*
 * Returns octets of the frame from `at` on, in place or copied to `room`: only the first buffer of
 * a frame can be read in place, and a driver may put any number of octets there. Returns NULL if
 * the frame is too short.
 */
static __always_inline void *octets(struct xdp_md *context, __u32 at, void *room, __u32 len)
{
	void *found = (void *)(long)context->data + at;

	if (found + len <= (void *)(long)context->data_end)
		return found;
	return bpf_xdp_load_bytes(context, at, room, len) ? NULL : room;
}
#endif

/*
 * Reads the VLAN and the MAC addresses of a frame, and moves on past the Ethernet header and a VLAN
 * tag. Returns the EtherType (host order), 0 if truncated. Frames with more tags, or with a
 * provider's (802.1ad), are left to the kernel: they are for devices on VLAN devices.
 */
static __always_inline __u16 parse_ethernet(PARSE_SOURCE *context, __u32 *at, struct steer_key *key,
					    struct headers *headers)
{
	struct ethhdr room __attribute__((aligned(4))), *ethernet = octets(context, *at, &room, sizeof(room));
	struct vlan_tag tag_room, *tag;
	const __be16 *macs = (const void *)ethernet;

	if (!ethernet)
		return 0;
	headers->destination_mac[0] = macs[0];
	headers->destination_mac[1] = macs[1];
	headers->destination_mac[2] = macs[2];
	headers->source_mac[0] = macs[3];
	headers->source_mac[1] = macs[4];
	headers->source_mac[2] = macs[5];
	headers->priority = 0;
	*at += sizeof(*ethernet);
	if (ethernet->h_proto != bpf_htons(ETH_P_8021Q))
		return bpf_ntohs(ethernet->h_proto);

	tag = octets(context, *at, &tag_room, sizeof(tag_room));
	if (!tag)
		return 0;
	key->vlan = bpf_ntohs(tag->control) & VLAN_ID;
	headers->priority = bpf_ntohs(tag->control) & VLAN_PRIORITY;
	*at += sizeof(*tag);
	return bpf_ntohs(tag->ethertype);
}

/*
 * Fills in family and addresses, and moves on to the TCP header. Returns STEER_REDIRECTED to go on,
 * or why the frame passes.
 */
static __always_inline int parse_ipv4(PARSE_SOURCE *context, __u32 *at, struct steer_key *key, __be32 *peer,
				      struct headers *headers)
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
	headers->hop_limit = ip->ttl;
	headers->priority |= ip->tos & DSCP;
	headers->ip_header_len = header_len;
	headers->ip_len = bpf_ntohs(ip->tot_len);
	*at += header_len;
	return STEER_REDIRECTED;
}

static __always_inline int parse_ipv6(PARSE_SOURCE *context, __u32 *at, struct steer_key *key, __be32 *peer,
				      struct headers *headers)
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
	headers->hop_limit = ip->hop_limit;
	headers->priority |= (ip->priority << 4 | ip->flow_lbl[0] >> 4) & DSCP;
	headers->ip_header_len = sizeof(*ip);
	headers->ip_len = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	*at += sizeof(*ip);
	return STEER_REDIRECTED;
}

/*
 * Reads the destination of a frame into the key (address, VLAN and port), the address of its
 * source, and the rest of its headers. Returns STEER_REDIRECTED if it is a TCP segment, or why not.
 */
static __always_inline int parse(PARSE_SOURCE *context, struct steer_key *key, __be32 *peer, struct headers *headers)
{
	struct tcp_ports room, *ports;
	__u32 at = 0;
	__u16 ethertype;
	int verdict;

	ethertype = parse_ethernet(context, &at, key, headers);
	headers->ip_at = at;
	switch (ethertype) {
	case ETH_P_IP:
		verdict = parse_ipv4(context, &at, key, peer, headers);
		break;
	case ETH_P_IPV6:
		verdict = parse_ipv6(context, &at, key, peer, headers);
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
	__builtin_memcpy(headers->source_port, ports->source, sizeof(headers->source_port));
	return STEER_REDIRECTED;
}


#endif
