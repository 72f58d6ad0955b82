// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * In the place of steer and police, to measure what these cost: redirects that check nothing. The
 * way of the frames is the same, and so are the maps.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "steer.h"

/* Where things lie in a frame without VLAN tag and IPv4 options. */
#define ETHERTYPE_AT 12
#define PROTOCOL_AT 23
#define DESTINATION_PORT_AT 36
#define ENOUGH 38

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STEER_PORTS);
	__type(key, __u32);
	__type(value, struct steer_port);
} steer_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, STEER_MAX_DEVICES);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} steer_devices SEC(".maps");

/* From the device to the client that has leased the TCP port. */
SEC("xdp.frags")
int plain_in(struct xdp_md *context)
{
	__u8 *octets = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	struct steer_port *port;
	__u32 number;

	if (octets + ENOUGH > end || *(__be16 *)(octets + ETHERTYPE_AT) != bpf_htons(ETH_P_IP) || octets[PROTOCOL_AT] != IPPROTO_TCP)
		return XDP_PASS;
	number = octets[DESTINATION_PORT_AT] << 8 | octets[DESTINATION_PORT_AT + 1];
	port = bpf_map_lookup_elem(&steer_ports, &number);
	if (!port || !port->port)
		return XDP_PASS;
	return bpf_redirect_map(&steer_devices, port->port, XDP_PASS);
}

/* From a client to the device. */
SEC("xdp.frags")
int plain_out(struct xdp_md *context)
{
	return bpf_redirect_map(&steer_devices, STEER_NIC, XDP_DROP);
}

char _license[] SEC("license") = "Dual MIT/GPL";
