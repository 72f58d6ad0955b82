// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Stands on the host's end of each client's veth pair, and lets out only what this client may send.
 * Frames for an address of this host turn around to the client that leased it; all others go to the
 * NIC. Passes none to the kernel. The only frames that it edits are those that no client of this
 * host accepts: they go back to their sender as the RST that answers them.
 */
#include <linux/tcp.h>
#include <linux/udp.h>

#include "parse.h"
#include "tables.h"
#include "tap.h"
#include "police.h"

#define ESP_LEAST 8 /* octets of its header */
#define TCP_DATA_OFFSET 12 /* in the header; the upper half of the octet, in words */
#define TCP_DATA_OFFSET_FIELD bpf_htonl(0xf0000000) /* in the word of the flags */
#define TCP_SEQ_TO_WINDOW 12 /* octets of the header from the sequence number to the window */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STEER_MAX_DEVICES);
	__type(key, __u32);
	__type(value, struct police_client);
} police_clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, POLICE_MAX_ADDRESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct police_address);
	__type(value, __u32);
} police_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, POLICE_SLOTS);
	__type(key, __u32);
	__type(value, struct police_neighbour);
} police_neighbours SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, POLICE_MAX_NEIGHBOURS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct police_neighbour);
	__type(value, __u32);
} police_more_neighbours SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STEER_MAX_DEVICES);
	__type(key, __u32);
	__type(value, struct police_counters);
} police_counters SEC(".maps");

/* Associations of ESP that clients send with. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STEER_MAX_SAS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct steer_sa);
	__type(value, struct steer_sa_use);
} police_sas SEC(".maps");

/* Not 0 if clients may send ESP. Otherwise the verifier removes what is for that. */
const volatile __u32 police_esp = 0;

/* A frame, and what its headers say. */
struct frame {
	__u32 len;
	struct headers headers;
};

static __always_inline void count(__u32 port, __u32 verdict, __u32 len)
{
	struct police_counters *counters = bpf_map_lookup_elem(&police_counters, &port);

	if (counters && verdict < POLICE_VERDICTS) {
		counters->by_verdict[verdict].frames += 1;
		counters->by_verdict[verdict].octets += len;
	}
}

/*
 * Reads the headers: the destination's address and port, and the source's. Returns POLICE_TO_NIC to
 * go on.
 */
static __always_inline int read(struct xdp_md *context, struct frame *frame, struct steer_key *to, struct steer_key *from)
{
	int verdict = parse(context, to, from->address, &frame->headers);

	if (verdict == STEER_TRUNCATED)
		return POLICE_TRUNCATED;
	if (verdict == STEER_FRAGMENT)
		return POLICE_FRAGMENT;
	if (verdict != STEER_REDIRECTED)
		return POLICE_NOT_TCP;
	if (to->family == STEER_IPV4 && frame->headers.ip_header_len != sizeof(struct iphdr))
		return POLICE_OPTIONS;
	__builtin_memcpy(from->port, frame->headers.source_port, sizeof(from->port));
	from->family = to->family;
	from->vlan = to->vlan;
	return POLICE_TO_NIC;
}

/* Checks the Ethernet header. Returns POLICE_TO_NIC to go on. */
static __always_inline int check_ethernet(const struct headers *headers, __u32 vlan)
{
	if (headers->destination_mac[0] & bpf_htons(0x0100))
		return POLICE_GROUP;
	if (!is_ours(find_link(vlan), headers->source_mac))
		return POLICE_SOURCE_MAC;
	return headers->priority ? POLICE_PRIORITY : POLICE_TO_NIC;
}

/*
 * Checks all lengths of a frame whose packet has a header of `header_len` behind that of IP.
 * Returns POLICE_TO_NIC to go on.
 */
static __always_inline int check_lengths(const struct frame *frame, __u32 header_len, __u32 mtu)
{
	const struct headers *headers = &frame->headers;

	if (headers->ip_header_len + header_len > headers->ip_len || headers->ip_at + headers->ip_len > frame->len)
		return POLICE_LENGTH;
	/* What lies behind the packet would leave with it. The shortest frames have padding. */
	if (headers->ip_at + headers->ip_len < frame->len && frame->len > POLICE_SHORTEST)
		return POLICE_LENGTH;
	return frame->len - headers->ip_at <= mtu ? POLICE_TO_NIC : POLICE_MTU;
}

/* Checks the Ethernet header and all lengths. Returns POLICE_TO_NIC to go on. */
static __always_inline int check_frame(struct xdp_md *context, const struct frame *frame, __u32 vlan, __u32 mtu)
{
	const struct headers *headers = &frame->headers;
	__u32 tcp_at = headers->ip_at + headers->ip_header_len;
	__u8 room, *data_offset = octets(context, tcp_at + TCP_DATA_OFFSET, &room, sizeof(room));
	int verdict = check_ethernet(headers, vlan);
	__u32 tcp_header_len;

	if (verdict != POLICE_TO_NIC)
		return verdict;
	if (!data_offset)
		return POLICE_LENGTH;
	tcp_header_len = (*data_offset >> 4) * 4;
	return tcp_header_len < 20 ? POLICE_LENGTH : check_lengths(frame, tcp_header_len, mtu);
}

/*
 * Returns whether an address is one of many hosts, or of none: of 0.0.0.0/8, 224.0.0.0/4 or
 * 240.0.0.0/4 (RFC 1122 section 3.2.1.3), unspecified, multicast, or one of IPv4 in IPv6
 * (::ffff:0:0/96), which is none on a wire (RFC 4291).
 */
static __always_inline int is_of_no_host(__u8 family, const __be32 *address)
{
	if (family == STEER_IPV4)
		return !(address[0] & bpf_htonl(0xff000000)) ||
		       (address[0] & bpf_htonl(0xe0000000)) == bpf_htonl(0xe0000000);
	if (!(address[0] | address[1]))
		return !(address[2] | address[3]) || address[2] == bpf_htonl(0x0000ffff);
	return (address[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

/*
 * Returns what an address is to this host in its VLAN: POLICE_OWN, POLICE_BROADCAST, or 0 if it is
 * another host's.
 */
static __always_inline __u32 look_up(const struct steer_key *key)
{
	struct police_address address = { .family = key->family, .vlan = key->vlan };
	__u32 *found;

	if (is_loopback(key->family, key->address))
		return POLICE_OWN;
	__builtin_memcpy(address.address, key->address, sizeof(address.address));
	found = bpf_map_lookup_elem(&police_addresses, &address);
	return found ? *found : 0;
}

/*
 * Returns whether a MAC address is one of a host or router that the kernel knows. Frames to others
 * are flooded, or mislead a switch.
 */
static __always_inline int is_neighbour(const __be16 *mac)
{
	struct police_neighbour *found, neighbour = { .mac = { mac[0], mac[1], mac[2] } };
	__u32 slot = bpf_ntohs(mac[2]) & (POLICE_SLOTS - 1);

	found = bpf_map_lookup_elem(&police_neighbours, &slot);
	if (!found)
		return 0;
	/* That of a slot without a neighbour is zero. */
	if (is_mac(found->mac, mac))
		return (mac[0] | mac[1] | mac[2]) != 0;
	return found->others && bpf_map_lookup_elem(&police_more_neighbours, &neighbour);
}

/*
 * Returns POLICE_TO_NIC if a client has leased an address of this host and port for what is not
 * protected: its own entry, or one for any address.
 */
static __always_inline int check_lease(__u32 port, const struct steer_key *key)
{
	struct steer_key entry = *key;
	struct steer_target target;

	if (!find(&entry, 1, 1, &target))
		return POLICE_NOT_LEASED;
	if (target.port == port)
		return POLICE_TO_NIC;
	return police_esp && target.port == (port | STEER_PROTECTED) ? POLICE_UNPROTECTED : POLICE_NOT_LEASED;
}

/*
 * Returns the octets of an Ethernet wire that a frame takes: small ones cost a network more than
 * they are long.
 */
static __always_inline __u32 on_the_wire(__u32 len)
{
	return (len > POLICE_SHORTEST ? len : POLICE_SHORTEST) + POLICE_FCS + POLICE_PREAMBLE + POLICE_GAP;
}

/* Takes the tokens for a frame. Returns whether there were enough. */
static __always_inline int take(struct police_client *client, __u32 len)
{
	__u64 now, elapsed, full = client->burst * POLICE_NANO, cost = on_the_wire(len) * POLICE_NANO;

	if (!client->rate)
		return 1;
	now = bpf_ktime_get_ns();
	elapsed = now - client->refilled;
	client->refilled = now;
	if (elapsed < client->fill_time) /* which also keeps the product in its range */
		client->tokens += elapsed * client->rate;
	else
		client->tokens = full;
	if (client->tokens > full)
		client->tokens = full;
	if (client->tokens < cost)
		return 0;
	client->tokens -= cost;
	return 1;
}

/* Checks who sends to whom. Returns POLICE_TO_NIC to go on. */
static __always_inline int check_ends(struct police_client *client, const struct steer_key *to, const struct steer_key *from)
{
	int verdict;

	if (is_of_no_host(to->family, to->address))
		return POLICE_DESTINATION;
	if (look_up(from) != POLICE_OWN)
		return POLICE_SOURCE;
	// rfc: 5040-116, 5041-94, 5042-2 what could affect others takes a lease of the manager
	verdict = check_lease(client->port, from);
	if (verdict != POLICE_TO_NIC)
		return verdict;
	return may_speak(client->port, to->family, to->address) ? POLICE_TO_NIC : POLICE_PEER;
}

/* Returns POLICE_TO_NIC if a frame may go to the network, or why not. */
static __always_inline int to_network(const struct headers *headers, const struct steer_key *from)
{
	if (is_loopback(from->family, from->address))
		return POLICE_LOOPBACK;
	return is_neighbour(headers->destination_mac) ? POLICE_TO_NIC : POLICE_NEXT_HOP;
}

/* Finds the device for a frame. Returns POLICE_TO_NIC, POLICE_TO_PORT, or why there is none. */
static __always_inline int route(const struct headers *headers, struct steer_key *to, const struct steer_key *from,
				 __u32 *device)
{
	struct steer_target target;
	__u32 which = look_up(to);

	*device = STEER_NIC;
	if (which == POLICE_BROADCAST)
		return POLICE_DESTINATION;
	if (which != POLICE_OWN)
		return to_network(headers, from);
	/* A port that is a hardware queue has frames from the network alone. */
	if (!find(to, 1, 1, &target) || target.port == STEER_NIC || target.port > STEER_PORT_MASK)
		return POLICE_NOBODY; /* so is one where nothing is unprotected */
	if (let_in(target.peers, to, from->address) != STEER_REDIRECTED ||
	    !may_speak(target.port, from->family, from->address))
		return POLICE_STRANGER;
	*device = target.port;
	return POLICE_TO_PORT;
}

/* Returns the protocol of a packet, if that is ESP or UDP; otherwise 0. */
static __always_inline int may_be_esp(__u8 protocol)
{
	return protocol == IPPROTO_ESP || protocol == IPPROTO_UDP ? protocol : 0;
}

/* The ends of a frame of ESP. */
struct esp_ends {
	struct steer_key key; /* the destination */
	__be32 source[4];     /* as in the key */
};

/*
 * Reads the IP header of a frame of ESP, or of UDP, as far as they are sent: IPv4 without options, or
 * IPv6. Returns which it is, or else 0.
 */
static __always_inline int read_esp(struct xdp_md *context, __u16 ethertype, struct headers *headers, struct esp_ends *ends)
{
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} room;
	struct iphdr *ip4;
	struct ipv6hdr *ip6;
	__u32 at = headers->ip_at;

	switch (ethertype) {
	case ETH_P_IP:
		ip4 = octets(context, at, &room.v4, sizeof(room.v4));
		if (!ip4 || ip4->version != 4 || ip4->ihl * 4 != sizeof(*ip4) ||
		    ip4->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET))
			return 0;
		ends->key.family = STEER_IPV4;
		__builtin_memcpy(ends->key.address, &ip4->daddr, sizeof(ip4->daddr));
		__builtin_memcpy(ends->source, &ip4->saddr, sizeof(ip4->saddr));
		headers->hop_limit = ip4->ttl;
		headers->priority |= ip4->tos & DSCP;
		headers->ip_header_len = sizeof(*ip4);
		headers->ip_len = bpf_ntohs(ip4->tot_len);
		return may_be_esp(ip4->protocol);
	case ETH_P_IPV6:
		ip6 = octets(context, at, &room.v6, sizeof(room.v6));
		if (!ip6 || ip6->version != 6)
			return 0;
		ends->key.family = STEER_IPV6;
		__builtin_memcpy(ends->key.address, &ip6->daddr, sizeof(ip6->daddr));
		__builtin_memcpy(ends->source, &ip6->saddr, sizeof(ip6->saddr));
		headers->hop_limit = ip6->hop_limit;
		headers->priority |= (ip6->priority << 4 | ip6->flow_lbl[0] >> 4) & DSCP;
		headers->ip_header_len = sizeof(*ip6);
		headers->ip_len = sizeof(*ip6) + bpf_ntohs(ip6->payload_len);
		return may_be_esp(ip6->nexthdr);
	default:
		return 0;
	}
}

/*
 * Returns the association of a frame of ESP, which may be in UDP, if a client may send with it from
 * its source to its destination, and between its ports. A key manager's datagrams begin with an SPI
 * of 0. What is inside was sealed with a key that the client has for what it leased alone: the peer's
 * policies bound it.
 */
static __always_inline struct steer_sa_use *find_own_sa(struct xdp_md *context, const struct police_client *client,
							const struct headers *headers, const struct esp_ends *ends,
							int protocol)
{
	struct steer_sa sa = { .family = ends->key.family };
	__u32 at = headers->ip_at + headers->ip_header_len, udp_port = 0;
	struct udphdr udp_room, *udp;
	struct steer_sa_use *use;
	__u8 room[4], *spi;

	if (protocol == IPPROTO_UDP) {
		udp = octets(context, at, &udp_room, sizeof(udp_room));
		if (!udp || !udp->dest || bpf_ntohs(udp->len) != headers->ip_len - headers->ip_header_len)
			return NULL;
		udp_port = (__u32)bpf_ntohs(udp->source) << 16 | bpf_ntohs(udp->dest);
		at += sizeof(*udp);
	}
	spi = octets(context, at, room, sizeof(room));
	if (!spi)
		return NULL;
	__builtin_memcpy(sa.spi, spi, sizeof(sa.spi));
	__builtin_memcpy(sa.address, ends->key.address, sizeof(sa.address));
	use = bpf_map_lookup_elem(&police_sas, &sa);
	if (!use || use->port != client->port || use->udp_port != udp_port)
		return NULL;
	return is_same(use->source, ends->source) ? use : NULL;
}

/*
 * Checks the ends of a frame of ESP. Returns POLICE_TO_NIC to go on. With whom a client may speak is
 * asked when it gets an association.
 */
static __always_inline int check_esp_ends(const struct esp_ends *ends)
{
	const struct steer_key *key = &ends->key;
	struct police_address address = { .family = key->family, .vlan = key->vlan };
	__u32 *found;

	if (is_of_no_host(key->family, key->address) || is_loopback(key->family, key->address))
		return POLICE_DESTINATION;
	__builtin_memcpy(address.address, key->address, sizeof(address.address));
	if (bpf_map_lookup_elem(&police_addresses, &address))
		return POLICE_DESTINATION;
	__builtin_memcpy(address.address, ends->source, sizeof(address.address));
	found = bpf_map_lookup_elem(&police_addresses, &address);
	return found && *found == POLICE_OWN ? POLICE_TO_NIC : POLICE_SOURCE;
}

/*
 * Judges a frame that is no TCP segment: it goes to the network if it is one of ESP that this
 * client may send. A function of its own, so that others do not pay for it.
 */
static __noinline int judge_esp(struct xdp_md *context, struct police_client *client, __u32 len)
{
	struct esp_ends ends = {};
	struct frame frame = { .len = len };
	struct headers *headers = &frame.headers;
	struct steer_sa_use *use;
	__u16 ethertype;
	int protocol, verdict, knows_next_hop;
	__u32 least = ESP_LEAST;

	if (!client)
		return POLICE_NOT_TCP;
	headers->ip_at = 0;
	ethertype = parse_ethernet(context, &headers->ip_at, &ends.key, headers);
	/* Here the addresses need not be kept, for which the stack has no room. */
	verdict = check_ethernet(headers, ends.key.vlan);
	knows_next_hop = is_neighbour(headers->destination_mac);
	protocol = read_esp(context, ethertype, headers, &ends);
	if (!protocol)
		return POLICE_NOT_TCP;
	use = find_own_sa(context, client, headers, &ends, protocol);
	if (!use && protocol == IPPROTO_UDP)
		return POLICE_NOT_TCP;
	if (protocol == IPPROTO_UDP)
		least += sizeof(struct udphdr);
	if (verdict == POLICE_TO_NIC)
		verdict = headers->priority ? POLICE_PRIORITY : check_lengths(&frame, least, client->mtu);
	if (verdict != POLICE_TO_NIC)
		return verdict;
	if (!headers->hop_limit)
		return POLICE_DESTINATION;
	if (!use)
		return POLICE_NOT_SA;
	verdict = check_esp_ends(&ends);
	if (verdict != POLICE_TO_NIC)
		return verdict;
	if (!take(client, len))
		return POLICE_RATE;
	if (!knows_next_hop)
		return POLICE_NEXT_HOP;
	__sync_fetch_and_add(&use->packets, 1);
	__sync_fetch_and_add(&use->octets, len);
	return POLICE_TO_NIC;
}

/* Returns a verdict as one that the compiler knows to be counted, as it knows of all others. */
static __always_inline __u32 known(__u32 verdict)
{
	return verdict < POLICE_VERDICTS ? verdict : POLICE_NOT_TCP;
}

/* Returns POLICE_TO_NIC or POLICE_TO_PORT, and the device, or why the frame is dropped. */
static __always_inline int judge(struct xdp_md *context, struct police_client *client, __u32 len, __u32 *device)
{
	struct steer_key to = {}, from = {};
	struct frame frame = { .len = len };
	int verdict = read(context, &frame, &to, &from);

	if (verdict != POLICE_TO_NIC)
		return verdict == POLICE_NOT_TCP && police_esp ? known(judge_esp(context, client, len)) : verdict;
	verdict = check_frame(context, &frame, to.vlan, client->mtu);
	if (verdict != POLICE_TO_NIC)
		return verdict;
	if (!frame.headers.hop_limit)
		return POLICE_DESTINATION;
	verdict = check_ends(client, &to, &from);
	if (verdict != POLICE_TO_NIC)
		return verdict;
	if (!take(client, len))
		return POLICE_RATE;
	return route(&frame.headers, &to, &from, device);
}

/* Exchanges two neighbouring fields. Returns whether the frame has them. */
static __always_inline int swap(struct xdp_md *context, __u32 at, __u32 len)
{
	__u8 fields[2 * sizeof(struct in6_addr)];

	return !bpf_xdp_load_bytes(context, at, fields, 2 * len) &&
	       !bpf_xdp_store_bytes(context, at, fields + len, len) &&
	       !bpf_xdp_store_bytes(context, at + len, fields, len);
}

/*
 * Turns a TCP header, which data follow, into that of the RST in answer (RFC 9293 section
 * 3.10.7.1). The addresses do not change the checksum, nor do the data, which RFC 9293 section
 * 3.5.3 lets a RST have.
 */
static __always_inline void make_reset(struct tcphdr *tcp, __u32 data_len)
{
	__be32 before[TCP_SEQ_TO_WINDOW / sizeof(__be32)], flags = TCP_FLAG_RST;
	__be16 source = tcp->source;
	__u32 sum;

	__builtin_memcpy(before, &tcp->seq, sizeof(before));
	tcp->source = tcp->dest;
	tcp->dest = source;
	if (tcp->ack) {
		tcp->seq = tcp->ack_seq;
		tcp->ack_seq = 0;
	} else {
		tcp->ack_seq = bpf_htonl(bpf_ntohl(tcp->seq) + data_len + tcp->syn + tcp->fin);
		tcp->seq = 0;
		flags |= TCP_FLAG_ACK;
	}
	tcp_flag_word(tcp) = (tcp_flag_word(tcp) & TCP_DATA_OFFSET_FIELD) | flags;
	sum = bpf_csum_diff(before, sizeof(before), &tcp->seq, sizeof(before), (__u16)~tcp->check);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	tcp->check = ~sum;
}

/*
 * Turns a frame that goes to no client into its answer: else who connects to where nobody listens
 * would wait in vain, and so would the peer of a program that was killed. A RST is not answered, so
 * that an answer never causes another. Of what a stranger sends, a SYN alone is answered: the owner
 * of the port may have a connection with it from before, which is the owner's to end. Returns
 * whether the frame is to go back. It is a function of its own so that other frames do not pay for
 * it.
 */
static __noinline int refuse(struct xdp_md *context, int verdict)
{
	struct steer_key to = {};
	__be32 from[4] = {};
	struct headers headers;
	struct tcphdr tcp;
	__u32 tcp_at;

	if (parse(context, &to, from, &headers) != STEER_REDIRECTED)
		return 0;
	tcp_at = headers.ip_at + headers.ip_header_len;
	if (bpf_xdp_load_bytes(context, tcp_at, &tcp, sizeof(tcp)))
		return 0;
	if (tcp.rst || (verdict == POLICE_STRANGER && (!tcp.syn || tcp.ack)))
		return 0;
	make_reset(&tcp, headers.ip_len - headers.ip_header_len - tcp.doff * 4);
	if (bpf_xdp_store_bytes(context, tcp_at, &tcp, sizeof(tcp)) || !swap(context, 0, ETH_ALEN))
		return 0;
	/* The addresses are the last of the IP header. */
	if (to.family == STEER_IPV4)
		return swap(context, tcp_at - 2 * sizeof(struct in_addr), sizeof(struct in_addr));
	return swap(context, tcp_at - 2 * sizeof(struct in6_addr), sizeof(struct in6_addr));
}

SEC("xdp.frags")
int rnic_police(struct xdp_md *context)
{
	__u32 index = context->ingress_ifindex, len = bpf_xdp_get_buff_len(context), device = STEER_NIC;
	struct police_client *client = bpf_map_lookup_elem(&police_clients, &index);
	int verdict, action = XDP_DROP;

	if (!client) {
		count(0, POLICE_UNKNOWN, len);
		tap(context, CAPTURE_SENT, 0, 0, XDP_DROP, POLICE_UNKNOWN);
		return XDP_DROP;
	}
	verdict = judge(context, client, len, &device);
	if (verdict == POLICE_TO_NIC || verdict == POLICE_TO_PORT) {
		action = bpf_redirect_map(&steer_devices, device, XDP_DROP);
		if (action != XDP_REDIRECT)
			verdict = POLICE_NO_DEVICE;
	} else if ((verdict == POLICE_NOBODY || verdict == POLICE_STRANGER) && refuse(context, verdict)) {
		action = XDP_TX;
	}
	count(client->port, verdict, len);
	tap(context, CAPTURE_SENT, client->port, verdict == POLICE_TO_PORT ? device : 0, action, verdict);
	return action;
}

char _license[] SEC("license") = "Dual MIT/GPL";
