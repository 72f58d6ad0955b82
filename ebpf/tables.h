/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The tables of local addresses and ports, and how they are looked up: what steer.bpf.c and police.bpf.c have in common. */
#ifndef RNIC_TABLES_H
#define RNIC_TABLES_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "steer.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STEER_MAX_ENTRIES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct steer_key);
	__type(value, struct steer_target);
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
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, STEER_MAX_DEVICES);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} steer_devices SEC(".maps");

static __always_inline int is_same(const __be32 *one, const __be32 *other)
{
	return !((one[0] ^ other[0]) | (one[1] ^ other[1]) | (one[2] ^ other[2]) | (one[3] ^ other[3]));
}

/* Returns whether an address is one that never leaves a host: of 127.0.0.0/8, or ::1. */
static __always_inline int is_loopback(__u8 family, const __be32 *address)
{
	if (family == STEER_IPV4)
		return (address[0] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
	return !(address[0] | address[1] | address[2]) && address[3] == bpf_htonl(1);
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
 * Finds the entry for an address and port, or for the port at any address; the key is that entry's then. It looks into steer_map
 * only if the port has more than the one entry of steer_ports. The target's port is set only if the device is shared. Returns
 * whether there is one.
 */
static __always_inline int find(struct steer_key *key, int shared, struct steer_target *target)
{
	struct steer_target *found;
	__u32 number = key->port[0] << 8 | key->port[1];
	struct steer_port *port = bpf_map_lookup_elem(&steer_ports, &number);

	if (!port)
		return 0;
	if (port->family == key->family &&
	    (port->any_address || (port->vlan == key->vlan && is_same(port->address, key->address)))) {
		target->peers = STEER_ALL_PEERS;
		if (shared)
			target->port = port->port;
		return 1;
	}
	if (!port->others)
		return 0;

	found = bpf_map_lookup_elem(&steer_map, key);
	if (!found) {
		__builtin_memset(key->address, 0, sizeof(key->address));
		key->vlan = 0;
		found = bpf_map_lookup_elem(&steer_map, key);
	}
	if (!found)
		return 0;
	target->peers = found->peers;
	if (shared)
		target->port = found->port;
	return 1;
}

static __always_inline int is_mac(const __be16 *one, const __be16 *other)
{
	return !((one[0] ^ other[0]) | (one[1] ^ other[1]) | (one[2] ^ other[2]));
}

/* Returns what this host has in a VLAN. It is NULL for a number that no VLAN has. */
static __always_inline struct steer_link *find_link(__u32 vlan)
{
	return bpf_map_lookup_elem(&steer_links, &vlan);
}

/*
 * Returns whether a MAC address is this host's in a VLAN. Frames for other hosts arrive if a device is promiscuous or a switch
 * floods. Frames for a group are not TCP's.
 */
static __always_inline int is_ours(const struct steer_link *link, const __be16 *mac)
{
	return link && link->known && (is_mac(link->mac[0], mac) || is_mac(link->mac[1], mac));
}

#endif
