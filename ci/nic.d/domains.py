"""A NIC in a VRF: its addresses, routes and TCP ports are those of the VRF, and sockets outside
have ports of their own."""

import contextlib

from nic import EAST, WEST
from nic_cases import case, expect
from operations import vlan
from sharing import expect_port, shared

EAST6, WEST6 = "fd79::1", "fd79::2"
# rnic-ctl's.
PORT = 18515


@contextlib.contextmanager
def domain(nics, device):
    """The west's NIC, or a VLAN on it, in a VRF."""
    try:
        # The kernel takes the device down and up again for it, which removes IPv6 addresses.
        nics.west(f"""set -e
            ip link add red type vrf table 10
            ip link set dev red up
            ip link set dev {device} master red""").checked()
        nics.wait_for_carrier()
        yield
    finally:
        nics.west("ip link delete dev red").checked()
        nics.wait_for_carrier()


@contextlib.contextmanager
def addresses_6(nics):
    try:
        nics.east(f"ip address add {EAST6}/64 dev nic0 nodad").checked()
        nics.west(f"ip address add {WEST6}/64 dev nic1 nodad").checked()
        yield
    finally:
        nics.west(f"ip address delete {WEST6}/64 dev nic1").checked()
        nics.east(f"ip address delete {EAST6}/64 dev nic0").checked()


def both_roles(nics, east, west, check=lambda report: None):
    """Verified data with the west as server, then as client."""
    check(nics.perf("write-bw", "--verify -s 20000 -n 40", host=west))
    serving = nics.serve("perf read-bw", side="east")
    done = nics.west(f"{nics.ctl} perf read-bw --netdev nic1 --verify -s 20000 -n 40 {east}")
    served = serving.wait() if done.code == 0 else nics.end(serving)
    expect(done.code == 0 and served.code == 0, f"the client in the VRF ends with {done.code}:", done.output, served.output)


@contextlib.contextmanager
def kernel_listens(nics, device="", address=""):
    """A listener of the kernel's on rnic-ctl's port, for sockets of a VRF if stated. Yields what
    came of it."""
    script = f"""exec python3 -c '
import signal, socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"{device}")
try:
    listener.bind(("{address}", {PORT}))
except OSError as error:
    sys.exit(str(error))
listener.listen()
print("listening", flush=True)
while True:
    accepted, _ = listener.accept()
    accepted.sendall(b"from the kernel")
    # The client closes first, and so has the TIME-WAIT, which would hold the port.
    accepted.recv(1)
    accepted.close()
'"""
    job = nics.bed.spawn("west", script, 600)
    nics.wait(lambda: "listening" in job.output() or not job.running(), "the kernel listens, or not")
    try:
        yield job
    finally:
        nics.end(job)


def expect_undisturbed(nics, outside):
    """A listener of the kernel's outside the VRF goes on answering programs outside."""
    said = nics.west(f"""python3 -c '
import socket
print(socket.create_connection(("127.0.0.1", {PORT}), timeout=20).recv(99).decode())
'""").output
    expect("from the kernel" in said, "a listener outside the VRF gets no connection:", said, outside.output())


@contextlib.contextmanager
def rnic_listens(nics, options=""):
    serving = nics.serve("perf write-bw", options)
    try:
        yield
    finally:
        nics.end(serving)


def expect_taken(nics, address):
    with kernel_listens(nics, "red", address) as job:
        expect("already in use" in job.output(), f"a leased port is free in the VRF at '{address}':", job.output())


def ports_are_of_the_vrf(nics, address):
    """While rnic listens in the VRF, the kernel refuses the port there, and nowhere else; and the
    other way around."""
    with rnic_listens(nics):
        for wanted in ("", address):
            expect_taken(nics, wanted)
        with kernel_listens(nics) as outside:
            expect("listening" in outside.output(), "a lease in the VRF takes the port from the others:", outside.output())
            expect_undisturbed(nics, outside)
    with kernel_listens(nics, "red"):
        refused = nics.west(f"{nics.ctl} perf write-bw --netdev nic1")
        expect(refused.code != 0 and "in use" in refused.output, "rnic takes a port that the kernel has in the VRF:", refused)


@case("a NIC in a VRF")
def _(nics):
    with domain(nics, "nic1"), addresses_6(nics):
        with kernel_listens(nics) as outside:
            both_roles(nics, EAST, WEST6)
            expect_undisturbed(nics, outside)
        ports_are_of_the_vrf(nics, WEST)


@case("a shared NIC in a VRF")
def _(nics):
    with domain(nics, "nic1"), shared(nics) as sharing:
        with kernel_listens(nics) as outside:
            both_roles(sharing, EAST, WEST, expect_port)
            expect_undisturbed(nics, outside)
        ports_are_of_the_vrf(sharing, WEST)


@case("a VLAN in a VRF, on a NIC outside")
def _(nics):
    with vlan(nics) as west, domain(nics, "nic1.7"):
        # All else leaves by the NIC itself, whose routes are not those of the VRF.
        nics.west(f"ip route add default via {EAST}").checked()
        try:
            both_roles(nics, "10.80.0.1", west)
            nics.perf("write-bw", "--verify -s 20000 -n 40")
            with rnic_listens(nics, f"--local {west}"):
                expect_taken(nics, west)
        finally:
            nics.west("ip route delete default").checked()
