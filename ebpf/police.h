/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The layout of the maps of clients, shared by police.bpf.c and
 * rnic-xdp/src/shared/programs/layout.rs. */
#ifndef RNIC_POLICE_H
#define RNIC_POLICE_H

#include <linux/types.h>

#include "steer.h"

/* The most addresses that this host has, those in VLANs included. */
#define POLICE_MAX_ADDRESSES 65536

/* Values of police_addresses. */
#define POLICE_OWN 1       /* an address of this host */
#define POLICE_BROADCAST 2 /* that of all hosts of a network, or of none: the last and the first one */

/* The most MAC addresses of neighbours, and the slots of police_neighbours: a power of two. */
#define POLICE_MAX_NEIGHBOURS 65536
#define POLICE_SLOTS 1024

/* The most ranges of addresses to which clients are limited, with the networks of the device. */
#define POLICE_MAX_PEERS 65536

/* Nanoseconds in a second, and the parts of a token, so that no time of a refill is lost. */
#define POLICE_NANO 1000000000ULL

/*
 * What a frame takes of an Ethernet wire: its octets up to the shortest frame's, and behind them
 * the frame check sequence; the preamble ahead, and the gap to the next one. A frame has neither
 * check sequence nor padding here.
 */
#define POLICE_SHORTEST 60
#define POLICE_FCS 4
#define POLICE_PREAMBLE 8
#define POLICE_GAP 12

/*
 * Value of police_clients, by the index of the host's end of its veth pair. One NAPI context runs
 * the program for a device, so the tokens need no lock. In generic mode several CPUs can, if the
 * client sends from several threads: the rate is not exact then.
 */
struct police_client {
	__u32 port;      /* its number: index of steer_devices, 1 or more */
	__u32 mtu;       /* the most octets behind the Ethernet header */
	__u64 rate;      /* octets of the wire a second; 0: any number */
	__u64 burst;     /* octets of the wire that it may send at once: the most tokens */
	__u64 fill_time; /* nanoseconds in which no tokens become the most */
	__u64 tokens;    /* in parts of an octet: POLICE_NANO are one */
	__u64 refilled;  /* when the tokens were counted, in nanoseconds of CLOCK_MONOTONIC */
};

/*
 * Key of police_addresses: an address of this host, or of a network of it. Loopback addresses need
 * none.
 */
struct police_address {
	__be32 address[4]; /* as in steer_key */
	__u32 family;      /* as in steer_key */
	__u32 vlan;        /* that it belongs to; 0 is none */
};

/*
 * The MAC address of a host or router on a link of the device, as the kernel knows it. Value of
 * police_neighbours, in the slot that the last octets of the address say: one of the slot's
 * addresses, with which the program compares, and whether there are others. Those are keys of
 * police_more_neighbours, with zero in that place.
 */
struct police_neighbour {
	__be16 mac[3];
	__u16 others;
};

/* Key of police_peers: a prefix of addresses with which a client may speak. */
struct police_peer {
	__u32 bits;        /* that count: 64 for port and family, and the first ones of the address */
	__u32 port;        /* of the client; 0: of those that may speak with hosts in the networks of the device */
	__u32 family;      /* as in steer_key */
	__be32 address[4]; /* as in steer_key */
};

/*
 * The verdict on a frame that a client sends, in the order of the checks but for the last two. All
 * but the first two drop it, but a SYN for nobody or from a stranger goes back to its sender as the RST that answers
 * it.
 */
enum police_verdict {
	POLICE_TO_NIC = 0,        /* sent to the network */
	POLICE_TO_PORT = 1,       /* turned around to a client of this host */
	POLICE_UNKNOWN = 2,       /* the device is no client's; counted for port 0 */
	POLICE_TRUNCATED = 3,     /* shorter than its headers say */
	POLICE_OPTIONS = 4,       /* IPv4 with options */
	POLICE_FRAGMENT = 5,      /* an IP fragment */
	POLICE_NOT_TCP = 6,       /* another protocol, or IPv6 with extension headers */
	POLICE_GROUP = 7,         /* to a group MAC address */
	POLICE_SOURCE_MAC = 8,    /* from a MAC address or VLAN that is not this host's */
	POLICE_PRIORITY = 9,      /* with a VLAN priority or DSCP other than the default one */
	POLICE_LENGTH = 10,       /* the lengths in the IP and TCP headers do not fit the frame or each other */
	POLICE_MTU = 11,          /* longer than the MTU */
	POLICE_DESTINATION = 12,  /* with a hop limit of 0, or to an address of many hosts or of none */
	POLICE_SOURCE = 13,       /* from an address that is not this host's in the VLAN */
	POLICE_NOT_LEASED = 14,   /* from an address and port that the client has not leased */
	POLICE_PEER = 15,         /* to an address with which the client may not speak */
	POLICE_RATE = 16,         /* over its rate */
	POLICE_LOOPBACK = 17,     /* from a loopback address to one that is not this host's */
	POLICE_NEXT_HOP = 18,     /* to a MAC address that is no neighbour's */
	POLICE_NOBODY = 19,       /* to an address of this host, at a port that no client has leased */
	POLICE_STRANGER = 20,     /* to a client of this host that does not listen for this one, or may not speak with it */
	POLICE_NO_DEVICE = 21,    /* the device where it goes is gone */
	POLICE_UNPROTECTED = 22,  /* unprotected, from an address and port that the client has leased for what is protected */
	POLICE_NOT_SA = 23,       /* of ESP, with an association that is not the client's */
	POLICE_VERDICTS = 24,
};

/* Value of police_counters, by port: one slot per CPU. */
struct police_counters {
	struct {
		__u64 frames;
		__u64 octets; /* of whole frames */
	} by_verdict[POLICE_VERDICTS];
};

#endif
