"""The siw virtual machine and the network around it, for ci/siw and ci/interop.

    with Lan() as lan:
        vm = lan.guest("10.78.0.2")          # boots; ready when it returns
        print(vm.run("ibv_devinfo").output)  # a shell script in the guest

Everything that is made here is gone when the `with` ends, however it ends. Call
`leave_nothing_behind()` first, so that signals end it too.
"""

import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import machine
from machine import GuestError, call, leave_nothing_behind, start, stop

__all__ = ["Capture", "Guest", "GuestError", "Lan", "call", "find", "leave_nothing_behind", "start", "stop"]

CI = pathlib.Path(__file__).resolve().parent.parent
PREFIX = 24


def image():
    """Returns the directory with vmlinux and initramfs.gz, and builds them if they are missing."""
    done = subprocess.run([CI / "siw-image"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise GuestError("ci/siw-image could not build the virtual machine (see above)")
    return pathlib.Path(done.stdout.strip())


def sweep():
    """Removes the namespaces and directories of runs that were killed."""
    for entry in (*pathlib.Path("/run/netns").glob("rnic-siw-*"),
                  *pathlib.Path(tempfile.gettempdir()).glob("rnic-siw-*")):
        owner = entry.name.split("-")[2]
        if not owner.isdigit() or pathlib.Path("/proc", owner).exists():
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            call("ip", "netns", "delete", entry.name, check=False)


class Lan:
    """A network namespace with a bridge; guests and host interfaces are its ports."""

    def __init__(self, name=None, mtu=1500):
        self.netns = name or f"rnic-siw-{os.getpid()}"
        self.mtu = mtu
        self._things = contextlib.ExitStack()
        self._numbers = itertools.count()

    def __enter__(self):
        if os.geteuid() != 0:
            raise GuestError("network namespaces and taps need root")
        sweep()
        with self._things:
            self.directory = pathlib.Path(tempfile.mkdtemp(prefix=f"rnic-siw-{os.getpid()}-"))
            self._things.callback(shutil.rmtree, self.directory, ignore_errors=True)
            call("ip", "netns", "add", self.netns)
            self._things.callback(call, "ip", "netns", "delete", self.netns, check=False)
            self.ip("link", "set", "lo", "up")
            self.ip("link", "add", "bridge", "type", "bridge", "stp_state", 0, "forward_delay", 0,
                    "mcast_snooping", 0)
            # The bridge stands for a switch: it must not reply to ARP for the host's address, which
            # the kernel would do.
            self.ip("link", "set", "bridge", "arp", "off", "addrgenmode", "none")
            self._up("bridge")
            self._things = self._things.pop_all()
        return self

    def __exit__(self, *_):
        self._things.close()

    def ip(self, *words):
        return call("ip", "-n", self.netns, *words)

    def inside(self, *command):
        """Returns the command line that runs `command` in the namespace."""
        return ["ip", "netns", "exec", self.netns, *command]

    def _up(self, interface):
        self.ip("link", "set", interface, "mtu", self.mtu, "up")

    def host_port(self, interface, address, bridged=True):
        """A veth with an address, joined to the bridge by `<interface>-br`, where captures see
        what an XDP program takes away. Both ends send whole frames with full checksums."""
        peer = f"{interface}-br"
        self.ip("link", "add", interface, "type", "veth", "peer", "name", peer)
        for each in (interface, peer):
            offloads = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"]
            call(*self.inside("ethtool", "-K", each, *offloads))
        self._join(peer, bridged)
        self._up(interface)
        self._up(peer)
        self.ip("address", "add", f"{address}/{PREFIX}", "dev", interface)

    def tap(self, bridged=True):
        name = f"tap{next(self._numbers)}"
        self.ip("tuntap", "add", name, "mode", "tap")
        self._join(name, bridged)
        self._up(name)
        return name

    def _join(self, interface, bridged):

        """Makes an interface a port of the bridge, or of the program in its place. The kernel
        itself sends nothing on either."""
        self.ip("link", "set", interface, "addrgenmode", "none", *(["master", "bridge"] if bridged else ["arp", "off"]))

    def tap_with_address(self, name, address):
        """A tap outside the bridge, for a single guest and an AF_XDP socket on the tap itself."""
        self.ip("tuntap", "add", name, "mode", "tap")
        self._up(name)
        self.ip("address", "add", f"{address}/{PREFIX}", "dev", name)
        return name

    def guest(self, address, tap=None, cpus=1):
        """Boots a virtual machine on a tap (by default a new one on the bridge)."""
        return self._things.enter_context(Guest(self, address, tap or self.tap(), cpus))

    def capture(self, interface):
        return Capture(self, interface)


class Guest(machine.Guest):
    """One virtual machine: Debian's 6.1 kernel, a siw device on eth0, rdma-core's tools."""

    def __init__(self, lan, address, tap, cpus):
        super().__init__(lan.directory, address)
        self.lan = lan
        self.address = address
        self._tap = tap
        self._cpus = cpus

    def _command(self, port, console):
        files = image()
        number = int(self.address.rsplit(".", 1)[1])
        # Frames as on a wire: none larger than the MTU, and no checksum left to a device.
        offloads = "".join(
            f",{name}=off"
            for name in ("csum gso guest_csum guest_tso4 guest_tso6 guest_ecn guest_ufo "
                         "host_tso4 host_tso6 host_ecn host_ufo mrg_rxbuf").split()
        )
        arguments = f"rnic.address={self.address}/{PREFIX} rnic.mtu={self.lan.mtu}"
        return self.lan.inside(
            "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "512",
            "-smp", self._cpus, "-machine", "q35", "-nodefaults", "-display", "none", "-no-reboot",
            "-kernel", files / "vmlinux", "-initrd", files / "initramfs.gz",
            "-append", f"console=ttyS0 quiet panic=-1 {arguments}",
            "-serial", f"file:{console}",
            "-netdev", f"tap,id=net,ifname={self._tap},script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=net,romfile=,mac=52:54:00:78:00:{number:02x}{offloads}",
            "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=port,path={port}",
            "-device", "virtserialport,chardev=port,name=rnic",
        )

    def switch(self, name, value):
        """Sets a module parameter of siw: mpa_version, mpa_crc_required, mpa_crc_strict,
        peer_to_peer, rtr_type. Returns its value before."""
        file = f"/sys/module/siw/parameters/{name}"
        return self.run(f"cat {file} && echo {value} >{file}").checked().strip()


class Capture:
    """tcpdump on one interface of a Lan, and what tshark reads in the capture."""

    def __init__(self, lan, interface):
        self._lan = lan
        self._interface = interface
        self.path = lan.directory / f"{interface}-{time.monotonic_ns()}.pcap"

    def __enter__(self):
        self._tcpdump = start(
            self._lan.inside("tcpdump", "-i", self._interface, "-U", "-s", "0", "-Z", "root",
                             "--immediate-mode", "-w", self.path),
            stderr=subprocess.PIPE, text=True,
        )
        line = self._tcpdump.stderr.readline()
        while line and "listening on" not in line:
            line = self._tcpdump.stderr.readline()
        if not line:
            raise GuestError(f"tcpdump cannot capture on {self._interface}")
        return self

    def __exit__(self, *_):
        # tcpdump writes each frame at once; the last frames reach it within moments.
        size = -1
        deadline = time.monotonic() + 10
        while size != self.path.stat().st_size and time.monotonic() < deadline:
            size = self.path.stat().st_size
            time.sleep(0.5)
        stop(self._tcpdump, signal.SIGINT)

    def packets(self, display_filter):
        """Returns the frames that match, each as tshark's tree of layers with the raw octets beside
        it."""
        # tshark recognises iWARP by its content; a port number that belongs to another protocol
        # must not prevent that.
        text = call("tshark", "-r", self.path, "-o", "tcp.try_heuristic_first:TRUE",
                    "-Y", display_filter, "-T", "json", "-x", "--no-duplicate-keys")
        return [packet["_source"]["layers"] for packet in json.loads(text or "[]")]

    def terminates(self):
        """Returns each Terminate on the wire: (sender's address, its control word's first two
        octets)."""
        found = []
        for layers in self.packets("iwarp_rdma.opcode == 7"):
            control = next(find(layers, "iwarp_rdma.term_ctrl_raw"))[0]
            found.append((layers["ip"]["ip.src"], bytes.fromhex(control)[:2]))
        return found


def find(tree, key):
    """Returns every value under `key`, at any depth."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            if name == key:
                yield value
            else:
                yield from find(value, key)
    elif isinstance(tree, list):
        for value in tree:
            yield from find(value, key)
