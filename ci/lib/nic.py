"""The virtual machine with two NICs of one kind, on one wire: what ci/nic is made of.

    with Bed("igb") as bed:
        print(bed.run("east", "rnic-ctl doctor --netdev nic0").output)

In the guest each NIC lies in a network namespace of its own: nic0 in "east", nic1 in "west". The
guest's file system is the host's, read-only, so that it runs the programs that the host has built.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import machine
from machine import GuestError, call

CI = pathlib.Path(__file__).resolve().parent.parent
EAST, WEST = "10.79.0.1", "10.79.0.2"
SIDES = {"east": ("nic0", EAST), "west": ("nic1", WEST)}


def image():
    """The directory with qemu, vmlinux and initramfs.gz, built if need be."""
    done = subprocess.run([CI / "nic-image"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise GuestError("ci/nic-image could not build the virtual machine (see above)")
    return pathlib.Path(done.stdout.strip())


def igb(number):
    # Each behind a port of its own: their virtual functions would clash on one bus.
    return ["-device", f"pcie-root-port,id=port{number},chassis={number + 1},slot={number + 1}",
            "-device", f"igb,bus=port{number},netdev=net{number},mac=52:54:00:79:00:0{number + 1},romfile="]


def virtio(number, iommu="on"):
    # Zero-copy needs DMA by addresses that the driver maps (iommu_platform). No hash=on: with it
    # QEMU spreads by itself, after it has read a frame from another queue's tap. A frame for a full
    # queue then stops that tap until the guest kicks the other queue, which may be never.
    return ["-device", f"virtio-net-pci,netdev=net{number},mac=52:54:00:79:00:0{number + 1},romfile=,mq=on,vectors=10,"
                       f"rss=on,iommu_platform={iommu},disable-legacy=on"]


KINDS = {
    "igb": igb, "virtio": virtio,
    # With spare queue pairs, which the driver adds for XDP; and without zero-copy.
    "virtio-spare": virtio, "virtio-copy": lambda number: virtio(number, "off"),
}


class Guest(machine.Guest):
    """One virtual machine with two NICs."""

    # It boots in 6 to 20 s, and much later on a host that has its processors elsewhere.
    patience = 150

    def __init__(self, bed, cpus):
        super().__init__(bed.directory, "guest")
        self._bed = bed
        self._cpus = cpus

    def _command(self, port, console):
        files = image()
        qemu = files / "qemu"
        nics = [word for number in (0, 1) for word in self._bed.wire(number) + KINDS[self._bed.kind](number)]
        return self._bed.inside(
            "env", f"QEMU_MODULE_DIR={qemu}/modules", qemu / "bin/qemu-system-x86_64",
            "-L", qemu / "share/qemu", "-L", qemu / "share/seabios",
            "-accel", "tcg,thread=multi", "-cpu", "max", "-machine", "q35", "-smp", self._cpus, "-m", 2048,
            "-nodefaults", "-display", "none", "-no-reboot",
            # A busy host lets timer interrupts wait so long that the kernel would panic:
            # no_timer_check.
            "-kernel", files / "vmlinux", "-initrd", files / "initramfs.gz",
            "-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check", "-serial", f"file:{console}",
            "-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
            *nics,
            "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=port,path={port}",
            "-device", "virtserialport,chardev=port,name=rnic",
        )


class Bed:
    """A guest whose NICs are up, have carrier and reach each other."""

    def __init__(self, kind, cpus=2, queues=2):
        self.kind = kind
        self._cpus = cpus
        self._queues = 2 * queues if kind == "virtio-spare" else queues
        self.netns = f"rnic-nic-{os.getpid()}-{kind}"
        self._things = contextlib.ExitStack()

    def __enter__(self):
        with self._things:
            self.directory = pathlib.Path(tempfile.mkdtemp(prefix=f"rnic-nic-{os.getpid()}-"))
            self._things.callback(shutil.rmtree, self.directory, ignore_errors=True)
            if self.kind.startswith("virtio"):
                self._make_taps()
            self._boot()
            self._things = self._things.pop_all()
        return self

    def __exit__(self, *_):
        self._things.close()

    def _boot(self):
        # Emulated machines hang at boot now and then, or their NICs do: the second try has not been
        # seen to.
        for attempt in (1, 2):
            try:
                with contextlib.ExitStack() as tried:
                    self.guest = tried.enter_context(Guest(self, self._cpus))
                    self.guest.run(PREPARE).checked()
                    self.wait_for_carrier()
                    self._things.enter_context(tried.pop_all())
                return
            except GuestError as error:
                if attempt == 2:
                    raise
                print(f"{self.kind}: the machine is booted again: {error}", flush=True)

    def _make_taps(self):
        """Taps with several queues in one bridge, in a namespace: virtio has no other wire of
        several queues."""
        call("ip", "netns", "add", self.netns)
        self._things.callback(call, "ip", "netns", "delete", self.netns, check=False)
        ip = ("ip", "-n", self.netns)
        call(*ip, "link", "add", "wire", "type", "bridge", "stp_state", 0, "forward_delay", 0, "mcast_snooping", 0)
        call(*ip, "link", "set", "wire", "mtu", 9500, "arp", "off", "addrgenmode", "none", "up")
        for number in (0, 1):
            tap = f"tap{number}"
            call(*ip, "tuntap", "add", tap, "mode", "tap", "multi_queue", "vnet_hdr")
            call(*ip, "link", "set", tap, "mtu", 9500, "master", "wire", "addrgenmode", "none", "up")

    def wire(self, number):
        """The options that join a NIC to the other."""
        if self.kind.startswith("virtio"):
            return ["-netdev", f"tap,id=net{number},ifname=tap{number},script=no,downscript=no,vhost=off,"
                               f"queues={self._queues}"]
        return ["-netdev", f"hubport,hubid=0,id=net{number}"]

    def inside(self, *command):
        """The command line that runs `command` where the wire is."""
        if self.kind.startswith("virtio"):
            return ["ip", "netns", "exec", self.netns, *command]
        return list(command)

    def run(self, side, script, timeout=60):
        """Runs a shell script in the namespace of a side of the guest."""
        return self.guest.run(self._in_namespace(side, script), timeout)

    def spawn(self, side, script, timeout=60):
        """Starts a shell script in the namespace of a side of the guest."""
        return self.guest.spawn(self._in_namespace(side, script), timeout)

    def _in_namespace(self, side, script):
        return f"exec ip netns exec {side} sh -c '{script.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}'"

    def wait_for_carrier(self):
        """The two NICs reach each other. igb loses its link for a moment whenever its queues are
        set up anew."""
        ping = f"ping -q -c 1 -W 1 {WEST}"
        self.wait(lambda: self.run("east", ping).code == 0, "the kernel's ping passes from NIC to NIC", seconds=60)

    def bind_again(self, side):
        """Brings a NIC back whose driver was bound again: the kernel puts it into its first
        namespace."""
        self.guest.run("set -e\n" + place(1 + list(SIDES).index(side), side)).checked()

    def wait(self, holds, what, seconds=20):
        """Returns as soon as `holds()` does."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise GuestError(f"waited {seconds} s in vain for this: {what}")
            time.sleep(0.1)


def place(number, side):
    """The script that brings a NIC into its namespace, with its address; it has carrier some time
    later."""
    name, address = SIDES[side]
    return f"""
for path in /sys/class/net/*; do
    if [ "$(cat $path/address)" = 52:54:00:79:00:0{number} ]; then found=${{path##*/}}; fi
done
ip link set dev $found down
ip link set dev $found netns {side}
ip -n {side} link set dev $found name {name} up
ip -n {side} address add {address}/24 dev {name}
"""


PREPARE = "set -e\n" + "".join(f"""
ip netns add {side}
ip -n {side} link set dev lo up
{place(number, side)}
""" for number, side in enumerate(SIDES, 1))
