"""The virtual machine of arm64 and the host beside it, joined by a bridge: what ci/arm is made of.

    with Bed(pages=16) as bed:
        print(bed.guest.run("/mnt/debug/rnic-ctl doctor --netdev eth0").output)

Both ends have an interface for rnic: the host's is one end of a veth pair, in a network namespace;
the guest's is eth0, of virtio-net. The guest's file system is ci/arm-image's, read-only, and what is
built for it lies in /mnt.
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess

import bench
import machine
import siw
from machine import GuestError

CI = pathlib.Path(__file__).resolve().parent.parent
BUILT = bench.BUILT
# What is built for aarch64, and where the guest has it.
BUILT_FOR_ARM = BUILT.parent / "aarch64-unknown-linux-gnu"
IN_GUEST = pathlib.Path("/mnt") / BUILT.name
# What both ends have, below the directory of their profile.
PROGRAMS = ("rnic", "rnic-ctl", "rnicd", "lib/libibverbs.so.1", "lib/librdmacm.so.1", "lib/librnic_sysfs.so")
HOST, ARM = "10.79.1.1", "10.79.1.2"
CASES = []


def case(name, long=False):
    """Registers a case, which is called with a Bed."""

    def register(function):
        CASES.append((name, long, function))
        return function

    return register


def made_by(script, *arguments):
    """The directory that a script of ci/ makes and prints."""
    done = subprocess.run([CI / script, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise GuestError(f"ci/{script} failed: what it said is above")
    return pathlib.Path(done.stdout.strip())


class Guest(machine.Guest):
    """A virtual machine of arm64 with one NIC."""

    # It boots in 10 to 40 s, and later on a host that has its processors elsewhere.
    patience = 240

    def __init__(self, lan, pages):
        super().__init__(lan.directory, f"arm-{pages}")
        self._lan = lan
        self.tap = lan.tap()
        self._files = made_by("arm-kernel", pages)
        self._system = made_by("arm-image")

    def _command(self, port, console):
        def directory(tag, path):
            return ["-fsdev", f"local,id={tag},path={path},security_model=none,readonly=on,multidevs=remap",
                    "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]

        return self._lan.inside(
            # pauth-impdef: the algorithm of an Arm processor that signs pointers is slow to emulate.
            "qemu-system-aarch64", "-accel", "tcg,thread=multi", "-cpu", "max,pauth-impdef=on",
            "-machine", "virt,gic-version=3", "-smp", 2, "-m", 2048, "-nodefaults", "-display", "none", "-no-reboot",
            "-kernel", self._files / "Image", "-initrd", self._files / "initramfs.gz",
            # On a busy host it gets no time for seconds, of which its kernel would complain.
            "-append", "console=ttyAMA0 quiet panic=-1 mitigations=off nosoftlockup rcupdate.rcu_cpu_stall_suppress=1",
            "-serial", f"file:{console}",
            *directory("host", self._system), *directory("built", BUILT_FOR_ARM),
            "-netdev", f"tap,id=net,ifname={self.tap},script=no,downscript=no",
            "-device", "virtio-net-pci,netdev=net,romfile=,mac=52:54:00:79:01:02",
            "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=port,path={port}",
            "-device", "virtserialport,chardev=port,name=rnic",
        )


class InGuest:
    """A program in the guest, used as `bench.Ours` is."""

    def __init__(self, guest, command, timeout):
        self._command = command
        self._guest = guest
        self._job = guest.spawn(f"exec {command}", timeout)

    def said(self):
        return self._job.output() if self._job.running() else self._job.wait().output

    def running(self):
        return self._job.running()

    ready = bench.Ours.ready
    until = bench.Ours.until

    def end(self, seconds=None):
        """Waits for its end, at most for the time that it has, and returns its exit code."""
        return self._job.wait().code

    def stop(self):
        if self._job.running():
            self._job.kill()
            self._job.wait()

    def kill(self):
        """Ends it as `kill -9` does."""
        self._job.kill(signal.SIGKILL)

    def __str__(self):
        return f"in the guest: {self._command}"


class OnHost(bench.Ours):
    """A program of the host's namespace."""

    def kill(self):
        """Ends it as `kill -9` does."""
        self._process.kill()


@dataclasses.dataclass
class End:
    """One of both ends: its address, its interface, and where its programs are."""

    bed: "Bed"
    name: str
    address: str
    interface: str
    built: pathlib.Path
    # How rnic-ctl is called.
    ctl: str

    def start(self, command, timeout=300):
        """Starts a program, which is stopped when the case has ended."""
        if self.name == "arm":
            program = InGuest(self.bed.guest, command, timeout)
        else:
            program = OnHost(self.bed, ["sh", "-c", f"exec {command}"])
        self.bed.running.callback(program.stop)
        return program

    def run(self, command, timeout=300):
        """Runs a program to its end, which must be a success; returns what it printed."""
        program = self.start(command, timeout)
        code = program.end(timeout)
        bench.expect(code == 0, f"{program} ended with {code}:", program.said())
        return program.said()

    def __str__(self):
        return self.name


class Bed:
    """Both ends, which reach each other. Everything is gone when the `with` ends."""

    def __init__(self, pages):
        self.pages = pages

    def __enter__(self):
        self._things = contextlib.ExitStack()
        # What a case has started.
        self.running = contextlib.ExitStack()
        with self._things:
            self.lan = self._things.enter_context(siw.Lan(f"rnic-arm-{os.getpid()}"))
            self.lan.host_port("rnic-host", HOST)
            self.guest = self._boot()
            self.host = End(self, "x86-64", HOST, "rnic-host", BUILT, BUILT / "rnic-ctl")
            self.arm = End(self, "arm", ARM, "eth0", IN_GUEST, IN_GUEST / "rnic-ctl")
            self._things = self._things.pop_all()
        return self

    def __exit__(self, *_):
        self._things.close()

    def _boot(self):
        # Emulated machines hang at boot now and then.
        for last in (False, True):
            try:
                guest = Guest(self.lan, self.pages).__enter__()
            except GuestError as error:
                if last:
                    raise
                print(f"the machine is booted again: {error}", flush=True)
                continue
            self._things.callback(guest.__exit__)
            guest.run(PREPARE).checked()
            return guest

    @contextlib.contextmanager
    def cut(self):
        """Nothing passes between both ends for a while, and neither's carrier says so."""
        # On the host's side of the bridge: outside of it, the guest's tap would answer ARP requests
        # for the host's address.
        self.lan.ip("link", "set", "rnic-host-br", "nomaster")
        try:
            yield
        finally:
            self.lan.ip("link", "set", "rnic-host-br", "master", "bridge")

    def set_mtu(self, mtu):
        """Sets the MTU of both ends, and of what lies between them."""
        for interface in ("bridge", "rnic-host", "rnic-host-br", self.guest.tap):
            self.lan.ip("link", "set", interface, "mtu", mtu)
        self.guest.run(f"ip link set eth0 mtu {mtu}").checked()


PREPARE = f"""set -e
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro built /mnt
ip address add {ARM}/24 dev eth0
ip link set dev eth0 up
ping -q -c 1 -W 30 {HOST}
"""
