"""ESP on the bypass, and as its peer the kernel's siw behind the kernel's ESP. AF_XDP needs a newer
kernel than the one that siw is built for: siw has a machine of its own on the same wire."""

import contextlib
import pathlib

import nic_cases
import siw
from esp import IF_ID, Protection, Wire
from machine import call
from nic import EAST
from nic_cases import case, expect

SIW = "10.79.0.3"
OURS, THEIRS = 7174, 7175
PINGS, OCTETS = 10, 20000
# Each ping is read, and its answer written: as many octets each way, in frames of 1,500 at most.
LEAST_FRAMES = 2 * PINGS * OCTETS // 1500


class Wall:
    """Where the machine with siw is plugged in, as a siw.Guest wants it."""

    mtu = 1500

    def __init__(self, bed):
        self.directory = pathlib.Path(bed.directory)
        self.inside = bed.inside


class Beds:
    """Both machines: that with the NICs, and as the side "siw" the other one."""

    def __init__(self, bed, guest):
        self._bed, self._guest = bed, guest

    def run(self, side, script, timeout=60):
        if side != "siw":
            return self._bed.run(side, script, timeout)
        # busybox' shell prefers its own program to one of the same name, which has no IPsec.
        return self._guest.run(script.replace("ip xfrm", "/bin/ip xfrm"), timeout)

    def __getattr__(self, name):
        return getattr(self._bed, name)


@contextlib.contextmanager
def machines(nics):
    """Boots the machine with siw."""
    ip = ("ip", "-n", nics.bed.netns)
    call(*ip, "tuntap", "add", "tap-siw", "mode", "tap")
    try:
        call(*ip, "link", "set", "tap-siw", "master", "wire", "addrgenmode", "none", "up")
        with siw.Guest(Wall(nics.bed), SIW, "tap-siw", 1) as guest:
            yield nic_cases.Nics(Beds(nics.bed, guest)), guest
    finally:
        call(*ip, "link", "delete", "tap-siw")


def siw_connects(nics, guest):
    ours = f"--via xdp --ipsec-if-id {IF_ID} -p {OURS} -V -S {OCTETS}"
    serving = nics.serve(f"rping -s -a {EAST}", ours, side="east")
    client = guest.run(f"rping -c -v -V -C {PINGS} -S {OCTETS} -a {EAST} -p {OURS}")
    served = nics.end(serving) if client.code else serving.wait()
    expect(client.code == 0 and served.code == 0, "siw cannot ping us:", client.output, served.output)
    expect(client.output.count("ping data: rdma-ping") == PINGS, f"siw does not report {PINGS} pings:", client.output)


def we_connect(nics, guest):
    serving = guest.listen(f"rping -s -v -V -C {PINGS} -S {OCTETS} -p {THEIRS}", THEIRS)
    ours = f"--netdev nic0 --via xdp --ipsec-if-id {IF_ID} -p {THEIRS} -V -C {PINGS} -S {OCTETS}"
    client = nics.east(f"{nics.ctl} rping -c -a {SIW} {ours}")
    served = nics.end(serving) if client.code else serving.wait()
    expect(client.code == 0, "we cannot ping siw:", client.output, served.output)
    expect(served.output.count("server ping data: rdma-ping") == PINGS, f"siw does not report {PINGS} pings:", served.output)


@case("ESP against siw behind the kernel's", kinds=("virtio",))
def _(nics):
    with machines(nics) as (both, guest):
        for mode in ("transport", "tunnel"):
            for ping in (siw_connects, we_connect):
                with Protection(both, mode, ends=(EAST, SIW), peer="siw") as protection, Wire(both) as wire:
                    ping(both, guest)
                    wire.check(LEAST_FRAMES)
                    protection.expect_no_errors()
        complaint = guest.complaint()
        expect(not complaint, complaint)
