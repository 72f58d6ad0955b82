/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* ESP whose associations are a process's own, or a client's, so that the kernel must not open it. */
#ifndef RNIC_ESP_H
#define RNIC_ESP_H

#include <linux/udp.h>

#include "parse.h"
#include "tables.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STEER_MAX_SAS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct steer_sa);
	__type(value, struct steer_sa_use);
} steer_sas SEC(".maps");

/*
 * Moves on to the payload of an IPv4 packet, and fills in addresses. The first fragment has an SPI
 * too: it goes where the others would, so that the kernel never has all of them. Returns what the
 * payload is: ESP or UDP, or else 0.
 */
static __always_inline int parse_esp_v4(struct xdp_md *context, __u32 *at, struct steer_key *key, __be32 *source)
{
	struct iphdr room, *ip = octets(context, *at, &room, sizeof(room));
	__u32 header_len;

	if (!ip || (ip->protocol != IPPROTO_ESP && ip->protocol != IPPROTO_UDP) || ip->frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return 0;
	header_len = ip->ihl * 4;
	if (ip->version != 4 || header_len < sizeof(*ip))
		return 0;
	key->family = STEER_IPV4;
	__builtin_memcpy(key->address, &ip->daddr, sizeof(ip->daddr));
	__builtin_memcpy(source, &ip->saddr, sizeof(ip->saddr));
	*at += header_len;
	return ip->protocol;
}

static __always_inline int parse_esp_v6(struct xdp_md *context, __u32 *at, struct steer_key *key, __be32 *source)
{
	struct ipv6hdr room, *ip = octets(context, *at, &room, sizeof(room));

	if (!ip || ip->version != 6 || (ip->nexthdr != IPPROTO_ESP && ip->nexthdr != IPPROTO_UDP))
		return 0;
	key->family = STEER_IPV6;
	__builtin_memcpy(key->address, &ip->daddr, sizeof(ip->daddr));
	__builtin_memcpy(source, &ip->saddr, sizeof(ip->saddr));
	*at += sizeof(*ip);
	return ip->nexthdr;
}

/*
 * Reads the destination of a frame of ESP into the key, its source, and its MAC addresses. Returns
 * who has its association, NULL if it is of none that is steered.
 */
static __always_inline struct steer_sa_use *find_steered(struct xdp_md *context, struct steer_key *key, __be32 *source,
							 struct headers *headers)
{
	struct steer_sa_use *use;
	struct steer_sa sa = {};
	__u32 at = 0, udp_port = 0;
	struct udphdr udp_room, *udp;
	__u8 room[4], *spi;
	int found = 0;

	switch (parse_ethernet(context, &at, key, headers)) {
	case ETH_P_IP:
		found = parse_esp_v4(context, &at, key, source);
		break;
	case ETH_P_IPV6:
		found = parse_esp_v6(context, &at, key, source);
		break;
	}
	if (!found)
		return NULL;
	if (found == IPPROTO_UDP) {
		udp = octets(context, at, &udp_room, sizeof(udp_room));
		if (!udp)
			return NULL;
		udp_port = bpf_ntohs(udp->dest);
		/* No association in UDP has that port, and the others have no UDP. */
		if (!udp_port)
			return NULL;
		at += sizeof(*udp);
	}
	spi = octets(context, at, room, sizeof(room));
	if (!spi)
		return NULL;
	__builtin_memcpy(sa.spi, spi, sizeof(sa.spi));
	__builtin_memcpy(sa.address, key->address, sizeof(sa.address));
	sa.family = key->family;
	use = bpf_map_lookup_elem(&steer_sas, &sa);
	/* Any datagram may begin as its packets do. */
	return use && use->udp_port == udp_port ? use : NULL;
}

#endif
