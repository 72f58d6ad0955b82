"""ESP through a router with a link that takes less: its reports quote what is protected, by which rnic
finds the connections that they are about."""

import contextlib

from esp import EAST, IF_ID, Protection, Wire
from nic import WEST
from nic_cases import case, expect, listening

FAR = "10.80.0.2"
NARROW = 1300
# Octets of a packet of NARROW at most, by mode: less header, IV and ICV of ESP, at a multiple of
# 4 with the trailer, and the header of a tunnel.
INNER = {"transport": 20 + 1246, "tunnel": 1246}


@contextlib.contextmanager
def router(nics):
    """A host "far" behind the west, on a link that takes less than the wire. It thinks that its
    own link takes as much, so that nothing but a report tells the east."""
    nics.bed.guest.run("ip netns add far").checked()
    try:
        nics.west(f"""set -e
            ip link add to-far mtu {NARROW} type veth peer name nic2 mtu 1500 netns far
            ip address add 10.80.0.1/24 dev to-far
            ip link set dev to-far up
            echo 1 >/proc/sys/net/ipv4/ip_forward""").checked()
        nics.bed.run("far", f"""set -e
            ip link set dev lo up
            ip address add {FAR}/24 dev nic2
            ip link set dev nic2 up
            ip route add default via 10.80.0.1""").checked()
        nics.east(f"ip route add 10.80.0.0/24 via {WEST}").checked()
        yield
    finally:
        nics.east("ip route delete 10.80.0.0/24")
        nics.west("ip link delete dev to-far; echo 0 >/proc/sys/net/ipv4/ip_forward")
        nics.bed.guest.run("ip netns delete far").checked()


def path(mode):
    @case(f"ESP: a router's report shrinks what goes through it, {mode} mode", kinds=("virtio",))
    def _(nics):
        with router(nics), Protection(nics, mode, ends=(EAST, FAR), peer="far") as protection, Wire(nics) as wire:
            server = f"{nics.ctl} perf write-bw --netdev nic2 --via kernel"
            serving = listening(nics.bed, "far", server, 120)
            done = nics.east(f"RUST_LOG=rnic_xdp=debug {nics.ctl} -j perf write-bw --netdev nic0 --via xdp "
                             f"--ipsec-if-id {IF_ID} --tcp-info -s 20000 -n 20 --verify {FAR}", 120)
            served = serving.wait() if done.code == 0 else nics.end(serving)
            expect(done.code == 0 and served.code == 0, "it has failed:", done.output, served.output)
            expect("no room for a packet: Protected" in done.output, "no router has said anything:", done.output)
            expect(f'"path_mss": {INNER[mode] - 40},' in done.output, f"segments are not of {INNER[mode] - 40} octets:",
                   done.output)
            wire.check(100)
            protection.expect_no_errors()


path("transport")
path("tunnel")
