// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Puts all that arrives at the client's end of a veth pair into the client's AF_XDP socket, and
 * drops what comes without one.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} port_socket SEC(".maps");

SEC("xdp.frags")
int rnic_port(struct xdp_md *context)
{
	/* The low bits of the flags are the action if there is no socket. */
	return bpf_redirect_map(&port_socket, 0, XDP_DROP);
}

char _license[] SEC("license") = "Dual MIT/GPL";
