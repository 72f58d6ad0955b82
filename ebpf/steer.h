/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The layout of the steering maps, shared by the programs and
 * rnic-xdp/src/device/steering/layout.rs. */
#ifndef RNIC_STEER_H
#define RNIC_STEER_H

#include <linux/types.h>

/* Values of steer_key.family. */
#define STEER_IPV4 4
#define STEER_IPV6 6

/* The most addresses and ports that are steered at once: as many as one address has ports. */
#define STEER_MAX_ENTRIES 65536

/* The most ranges of peers' addresses to which entries are limited at once. */
#define STEER_MAX_PEERS 65536

/* Values of steer_target.peers. */
#define STEER_ALL_PEERS 1
#define STEER_SOME_PEERS 2 /* those in steer_peers */

/* The most addresses that are this host's own, on all its devices. */
#define STEER_MAX_LOCALS 65536

/* Those of each family that steer_host has. */
#define STEER_FIRST 2

/*
 * Bits of steer_client.peers: with whom a client may speak, which bounds what it sends and what
 * arrives for it. Without any it is nobody.
 */
#define STEER_EVERYBODY 1
#define STEER_ON_LINK 2 /* hosts in the networks of the device (those of port 0 in police_peers), and this host */
#define STEER_LISTED 4  /* those of its port in police_peers */

/* Local TCP ports. */
#define STEER_PORTS 65536

/*
 * VLAN identifiers; 0 stands for frames without a tag, and for those whose tag names no VLAN
 * (802.1p).
 */
#define STEER_VLANS 4096

/* The most associations of ESP that are steered at once. */
#define STEER_MAX_SAS 65536

/* The most addresses in VLANs whose frames may arrive without their tag. */
#define STEER_MAX_UNTAGGED 512

/* Upper bound of receive queues; set to the device's number when loaded. */
#define STEER_MAX_QUEUES 64

/* Entries of steer_devices: the device itself, and the clients that share it. */
#define STEER_MAX_DEVICES 1024

/* The index of the device itself in steer_devices. */
#define STEER_NIC 0

/*
 * Who gets the frames of an entry, in the word "port": in the low bits the number of a client's
 * port, which is an index of steer_devices, or 0 for the socket of the receive queue. If the port
 * is a hardware queue of the device, the bits above are the number of that queue plus 1: an index
 * of steer_sockets. The highest bit is set if nothing goes there or comes from there unprotected.
 */
#define STEER_PORT_MASK 0xffff
#define STEER_QUEUE_SHIFT 16
#define STEER_PROTECTED 0x80000000

/*
 * Key of steer_map. An all-zero address stands for any address of the family that is this host's
 * own: one in steer_locals.
 */
struct steer_key {
	__be32 address[4]; /* IPv4 in the first, the rest zero */
	__u8 port[2];     /* local TCP port, network order */
	__u8 family;      /* STEER_IPV4 or STEER_IPV6 */
	__u8 reserved;    /* zero */
	__u32 vlan;       /* the VLAN that the address belongs to; 0 where that is any */
};

/*
 * Key of steer_sas and police_sas: a Security Association of ESP that this host receives with, or
 * that clients send with.
 */
struct steer_sa {
	__be32 address[4]; /* the receiver: as in steer_key */
	__u8 spi[4];       /* network order */
	__u32 family;      /* as in steer_key */
};

/*
 * Value of steer_sas and police_sas: who has the association. What clients do with it is counted
 * here, so that they cannot hide it. What they receive is counted before it is known whether it is
 * genuine.
 */
struct steer_sa_use {
	__u32 port;       /* of the client; 0: the socket of the receive queue */
	__u32 print;      /* of its key, by which the next rnicd knows it again */
	__be32 source[4]; /* the sender, as in steer_key; zero where nothing is counted */
	__u32 udp_port;   /* where they come to in UDP, in police_sas with the sender's above it; 0: not in UDP */
	__u32 reserved;   /* zero */
	__u64 packets;
	__u64 octets; /* of whole frames */
};

/* Value of steer_map. */
struct steer_target {
	__u32 peers; /* STEER_ALL_PEERS or STEER_SOME_PEERS */
	__u32 port;  /* who gets the frames: see STEER_PORT_MASK */
};

/* Key of steer_peers: a prefix of peers' addresses to which an entry of steer_map is limited. */
struct steer_peer {
	__u32 bits;             /* that count: those of local, and the first ones of the address */
	struct steer_key local; /* the entry */
	__be32 address[4];      /* as in the key */
};

/*
 * Value of steer_ports, by local port: one of the port's entries in steer_map, and the number of
 * others. A steered port seldom has more than one, and comparing takes a fraction of the time of
 * hashing. That entry is one for all peers: entries that are limited to some peers are among the
 * others.
 */
struct steer_port {
	__be32 address[4]; /* as in the key; written while the family is 0 */
	__u8 family;       /* as in the key; 0: steer_map alone has the entries */
	__u8 any_address;  /* not 0: any address of this host's own of the family, in any VLAN */
	__u16 vlan;        /* as in the key */
	__u32 others;
	__u32 port;        /* as in steer_target */
};

/*
 * Value of steer_links, by VLAN identifier: this host's MAC addresses in the VLAN. A VLAN has two,
 * both of which the kernel accepts: the VLAN device's, and that of the device below.
 */
struct steer_link {
	__be16 mac[2][3];
	__u32 known; /* 0: this host has no such VLAN on the device, or it is down; else STEER_KNOWN or STEER_UNTAGS */
};

/* Values of steer_link.known. */
#define STEER_KNOWN 1
#define STEER_UNTAGS 2 /* of VLAN 0 only: also, the device removes tags ahead of the program, and steer_untagged has addresses */

/*
 * Key of steer_untagged: an address that this host has in one VLAN of the device and nowhere else
 * on it. The value is that VLAN. A frame for it that arrives without a tag has had that VLAN's.
 * Also key of steer_locals: an address that this host has on any device. What it forwards or
 * translates is for others.
 */
struct steer_address {
	__be32 address[4]; /* as in steer_key */
	__u32 family;      /* as in steer_key */
};

/* Value of steer_clients, by port: with whom the client may speak. */
struct steer_client {
	__u32 peers; /* STEER_EVERYBODY and the like */
};

/*
 * The one value of steer_host: addresses of this host and networks of the device that are looked
 * for most, so that they are compared and not looked up. steer_locals has all the addresses,
 * police_peers all the networks. What there is not is all ones, or zero.
 */
struct steer_host {
	__be32 own_v4[STEER_FIRST];
	__be32 own_v6[STEER_FIRST][4];
	__be32 network_v4;
	__be32 mask_v4;
	__be32 network_v6[4];
	__be32 mask_v6[4];
};

/* The verdict on a frame: index into steer_counters, one slot per CPU. */
enum steer_verdict {
	STEER_REDIRECTED = 0,   /* to the AF_XDP socket of its receive queue */
	STEER_NO_SOCKET = 1,    /* steered, but its queue has no socket: passed to the kernel */
	STEER_NOT_STEERED = 2,  /* TCP for an address and port that are not ours: passed */
	STEER_FRAGMENT = 3,     /* an IP fragment: passed */
	STEER_NOT_TCP = 4,      /* another protocol, or IPv6 with extension headers: passed */
	STEER_TRUNCATED = 5,    /* shorter than its headers say: passed */
	STEER_OTHER_HOST = 6,   /* steered, but to a MAC address that is not ours, or in a VLAN without a device here: passed */
	STEER_STRANGER = 7,     /* steered for other peers only, or for a client that may not speak with this one: passed */
	STEER_TO_PORT = 8,      /* to the client that leased its destination */
	STEER_NO_PORT = 9,      /* to a client whose device is gone: passed */
	STEER_LOOPBACK = 10,    /* from or to a loopback address, which must not come from a network: passed */
	STEER_WRONG_QUEUE = 11, /* to a client that has a hardware queue, but from another queue: dropped */
	STEER_UNPROTECTED = 12, /* steered, but unprotected where nothing may be: dropped */
	STEER_VERDICTS = 13,
};

#endif
