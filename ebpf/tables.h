/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The tables of local addresses and ports, and how they are looked up: what steer.bpf.c and
 * police.bpf.c have in common.
 */
#ifndef RNIC_TABLES_H
#define RNIC_TABLES_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "police.h"
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
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STEER_MAX_LOCALS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct steer_address);
	__type(value, __u32);
} steer_locals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct steer_host);
} steer_host SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STEER_MAX_DEVICES);
	__type(key, __u32);
	__type(value, struct steer_client);
} steer_clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, POLICE_MAX_PEERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct police_peer);
	__type(value, __u32);
} police_peers SEC(".maps");

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

static __always_inline int is_zero(const __be32 *address)
{
	return !(address[0] | address[1] | address[2] | address[3]);
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

/* Returns whether an address is among those of a port in police_peers. */
static __always_inline int is_listed(__u32 port, __u8 family, const __be32 *address)
{
	struct police_peer peer = { .bits = 8 * (sizeof(peer) - sizeof(peer.bits)), .port = port, .family = family };

	__builtin_memcpy(peer.address, address, sizeof(peer.address));
	return bpf_map_lookup_elem(&police_peers, &peer) != NULL;
}

static __always_inline struct steer_host *find_host(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&steer_host, &only);
}

/* Returns whether an address is in a network of the device. */
static __always_inline int is_on_link(__u8 family, const __be32 *address)
{
	const struct steer_host *host = find_host();
	const __be32 *network, *mask;

	if (!host)
		return 0;
	if (family == STEER_IPV4)
		return (host->mask_v4 && !((address[0] ^ host->network_v4) & host->mask_v4)) ||
		       is_listed(STEER_NIC, family, address);
	network = host->network_v6;
	mask = host->mask_v6;
	return (mask[0] && !(((address[0] ^ network[0]) & mask[0]) | ((address[1] ^ network[1]) & mask[1]) |
			     ((address[2] ^ network[2]) & mask[2]) | ((address[3] ^ network[3]) & mask[3]))) ||
	       is_listed(STEER_NIC, family, address);
}

/* Returns whether a client may speak with an address: send there, and receive from there. */
static __always_inline int may_speak(__u32 port, __u8 family, const __be32 *address)
{
	struct steer_client *client = bpf_map_lookup_elem(&steer_clients, &port);
	__u32 peers = client ? client->peers : 0;

	if (peers & STEER_EVERYBODY)
		return 1;
	if ((peers & STEER_ON_LINK) && (is_loopback(family, address) || is_on_link(family, address)))
		return 1;
	return (peers & STEER_LISTED) && is_listed(port, family, address);
}

/* Returns whether an address is this host's own, on whatever device. */
static __always_inline int is_own(const struct steer_key *key)
{
	struct steer_address address = { .family = key->family };
	const struct steer_host *host = find_host();

	/* That is the key of entries for any address, and none of a frame. */
	if (!host || is_zero(key->address))
		return 0;
	if (key->family == STEER_IPV4 ? key->address[0] == host->own_v4[0] || key->address[0] == host->own_v4[1] :
					is_same(key->address, host->own_v6[0]) || is_same(key->address, host->own_v6[1]))
		return 1;
	__builtin_memcpy(address.address, key->address, sizeof(address.address));
	return bpf_map_lookup_elem(&steer_locals, &address) != NULL;
}

/*
 * Finds the entry for an address and port, or for the port at any address; the key is that entry's
 * then. It looks into steer_map only if the port has more than the one entry of steer_ports. The
 * target's port is set only if the device is shared. Entries are for addresses that are this host's
 * own now; where that is known already, `is_known` says so. Returns whether there is one.
 */
static __always_inline int find(struct steer_key *key, int shared, int is_known, struct steer_target *target)
{
	struct steer_target *found;
	__u32 number = key->port[0] << 8 | key->port[1];
	struct steer_port *port = bpf_map_lookup_elem(&steer_ports, &number);

	if (!port)
		return 0;
	if (port->family == key->family &&
	    (port->any_address || (port->vlan == key->vlan && is_same(port->address, key->address)))) {
		if (!is_known && !is_own(key))
			return 0;
		target->peers = STEER_ALL_PEERS;
		if (shared)
			target->port = port->port;
		return 1;
	}
	/* An all-zero address is the key of entries for any address, and none of a frame. */
	if (!port->others || is_zero(key->address) || (!is_known && !is_own(key)))
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
 * Returns whether a MAC address is this host's in a VLAN. Frames for other hosts arrive if a device
 * is promiscuous or a switch floods. Frames for a group are not TCP's.
 */
static __always_inline int is_ours(const struct steer_link *link, const __be16 *mac)
{
	return link && link->known && (is_mac(link->mac[0], mac) || is_mac(link->mac[1], mac));
}

#endif
