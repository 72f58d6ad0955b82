"""What the cases of ci/programs run on: two network namespaces, joined by a veth pair, and the
programs of a case at both ends.

A program runs in one of these ways: as root with the interface for itself; without any right, with
a port of rnicd; or over TCP sockets of the kernel, as a container without any right.
"""

import contextlib
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

from machine import call, start, stop

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILT = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / os.environ.get("RNIC_PROFILE", "release")
LIBRARIES = ("lib/libibverbs.so.1", "lib/librdmacm.so.1", "lib/libibverbs.so", "lib/librdmacm.so", "lib/librnic_sysfs.so")
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all",
          "--no-new-privs"]
# The server's side, and the client's.
SIDES = {"west": ("10.77.8.1", "fd77:8::1"), "east": ("10.77.8.2", "fd77:8::2")}
CASES = []

# The octets that a host's programs may send by the kernel's IP while rnic has frames of its own: what
# they tell each other to connect. A program that takes TCP without a word sends more.
KERNELS_MOST = 1 << 20

# How a case is run. On one host both programs have ports of the same rnicd, and their frames never
# leave it.
ALONE, SHARED, ONE_HOST = "alone", "over rnicd", "on one host, over rnicd"
# Over TCP sockets of the kernel, without any right; and with one end by sockets, and the other with
# the interface for itself: the server, or the client.
KERNEL, KERNEL_HOST = "by sockets", "on one host, by sockets"
TO_XDP, FROM_XDP = "by sockets, the server alone", "by sockets, the client alone"
# Over TCP sockets of the kernel, with one end in an emulator of aarch64: in a system of arm64, by
# what is built for it.
ARM_SERVER, ARM_CLIENT = "by sockets, the server on aarch64", "by sockets, the client on aarch64"
FRAMES = (ALONE, SHARED, ONE_HOST)
EMULATED = (ARM_SERVER, ARM_CLIENT)
# What that system has, and that needs no file of ours.
OF_ARM = re.compile(r"(rping|ucmatose|udaddy|cmtime|rdma_\w+|ib_\w+|ibv_\w+)( (?!.*\{(?!server6?\}|client\}|device\}))|$)")
SOCKETS = (KERNEL, KERNEL_HOST, TO_XDP, FROM_XDP)
WAYS = FRAMES + SOCKETS


class Failed(Exception):
    """A case failed: the text says what it expected and what it saw."""


class NotRun(Exception):
    """A case cannot be run here: the text says why."""


def expect(holds, what, *seen):
    if not holds:
        raise Failed("\n".join([what, *map(str, seen)]))


@dataclass
class Case:
    """A server and a client. In their command lines `{server}` and `{server6}` stand for the
    server's addresses, `{client}` for the client's, `{device}` for the side's RDMA device,
    `{place}` for a directory that both can write to, `{own}` for that of our own programs,
    `{newest}` for the same compiled with the newest headers, `{files}` for one that has the C
    programs and the other files of ci/programs.d, `{other_host}` for the server's namespace, its
    interface and the command `rnic`."""

    name: str
    client: str
    server: str = ""
    # Patterns that the output must have.
    says: tuple = ()
    server_says: tuple = ()
    # The port at which the server listens, and whether rnic or the kernel has it.
    port: int = 0
    kernel: bool = False
    # What the server says, besides, before the client starts.
    ready: str = ""
    # Whether the server goes on when the client has ended: it is stopped then.
    lasting: bool = False
    # The client's exit code.
    code: int = 0
    server_code: int = 0
    seconds: int = 30
    # By frames. By sockets it runs too, unless it is `frames_only`.
    ways: tuple = FRAMES
    frames_only: bool = False
    # Ways in which others take their turn.
    left_out: tuple = ()
    # A signal that ends the client after this many seconds.
    stopped_after: int = 0
    tags: tuple = field(default=())
    # Whether the path between the hosts loses one frame in a hundred, both ways. So many must be
    # lost, or it tells nothing.
    lost: int = 0
    # Whether it sleeps most of its time: such cases run beside the others, on hosts of their own.
    waits: bool = False


    def runs(self, way):
        """Returns whether the case is run in a way."""
        if way in self.left_out:
            return False
        if way in FRAMES:
            return way in self.ways
        if way in EMULATED:
            return self.runs(TO_XDP) and all(OF_ARM.match(command) for command in (self.client, self.server))
        if self.frames_only:
            return False
        if way == KERNEL_HOST:
            return ONE_HOST in self.ways
        if way == KERNEL:
            return ALONE in self.ways or SHARED in self.ways
        return bool(self.server) and self.ways == FRAMES


def take_turns(cases, among):
    """Chooses for each case one of its ways among some: another one each day."""
    show = ["git", "-C", ROOT, "show", "--no-patch", "--format=%ct"]
    day = int(subprocess.run(show, check=True, capture_output=True, text=True).stdout) // 86400
    for number, case in enumerate(cases):
        ways = [way for way in among if case.runs(way)]
        chosen = ways[(day + number) % len(ways)] if ways else None
        case.left_out += tuple(way for way in ways if way != chosen)


def table(*cases):
    """Adds cases to the table."""
    CASES.extend(cases)


class Process:
    """A program of a case, with what it prints."""

    def __init__(self, directory, name, command, environment, place=None):
        self._name = name
        self._log = directory / f"{name}.log"
        with open(self._log, "wb") as log:
            self._process = start(command, stdout=log, stderr=subprocess.STDOUT, cwd=place,
                                  env={**os.environ, **environment})

    def said(self):
        return self._log.read_text(errors="replace")

    def running(self):
        return self._process.poll() is None

    def end(self, seconds):
        """Waits for its end, and returns its exit code; that of a signal is negative."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._show_threads()
            raise Failed(f"the {self._name} does not end within {seconds} s; it said:\n{self.said()}") from None

    def _show_threads(self):
        """Adds to its output where each of its threads waits."""
        with contextlib.suppress(OSError), open(self._log, "a") as log:
            for task in pathlib.Path(f"/proc/{self._process.pid}/task").iterdir():
                log.write(f"[{(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text()}]\n")

    def signal(self, number):
        self._process.send_signal(number)

    def stop(self):
        stop(self._process, signal.SIGINT)
        # A child of a server may live a moment longer, and has its interface and its ports.
        deadline = time.monotonic() + 10
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, 0)
                time.sleep(0.01)
            os.killpg(self._process.pid, signal.SIGKILL)


class Hosts:
    """Both namespaces. Everything is gone when the `with` ends."""

    def __init__(self, way, lossy=False):
        """`lossy`: something stands between the hosts that loses frames."""
        self.way = way
        self.lossy = lossy

    def __enter__(self):
        self._things = contextlib.ExitStack()
        with self._things:
            self.directory = pathlib.Path(tempfile.mkdtemp(prefix=f"rnic-programs-{os.getpid()}-"))
            self._things.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self.directory.chmod(0o755)
            self._install()
            self._link()
            if self.way in (SHARED, ONE_HOST):
                self._share()
            self._things = self._things.pop_all()
        return self

    def __exit__(self, *_):
        self._things.close()

    def _install(self):
        """Copies what users run: the directories above the project may be closed to them."""
        (self.directory / "lib").mkdir()
        for file in ("rnic", "rnic-ctl", "rnicd", *LIBRARIES):
            shutil.copy(BUILT / file, self.directory / file, follow_symlinks=False)
        if self.way in EMULATED:
            self._install_arm()
        self.files = self.directory / "files"
        self.files.mkdir()
        for pattern in ("*.c", "*.supp", "*-agent"):
            for file in (ROOT / "ci/programs.d").glob(pattern):
                shutil.copy(file, self.files)
        self.place = self.directory / "place"
        self.place.mkdir()
        self.place.chmod(0o1777)

    def _install_arm(self):
        found = subprocess.run([ROOT / "ci/arm-image"], stdout=subprocess.PIPE, text=True)
        expect(found.returncode == 0, "ci/arm-image failed: what it said is above")
        self.arm_root = found.stdout.strip()
        built = BUILT.parent / "aarch64-unknown-linux-gnu" / BUILT.name
        (self.directory / "arm/lib").mkdir(parents=True)
        for file in ("rnic", *LIBRARIES):
            expect((built / file).exists(), f"no {built / file}: cargo xtask build --target aarch64-unknown-linux-gnu")
            shutil.copy(built / file, self.directory / "arm" / file, follow_symlinks=False)

    @functools.cached_property
    def own(self):
        """The directory of our own programs, which are compiled when a case first wants one."""
        directory = self._compiled("own")
        shutil.copytree(ROOT / "ci/programs.d/pyverbs", directory / "pyverbs")
        return directory

    @functools.cached_property
    def newest(self):
        """The same programs, compiled with the newest headers of rdma-core."""
        found = subprocess.run([ROOT / "ci/rdma-headers"], stdout=subprocess.PIPE, text=True)
        expect(found.returncode == 0, "ci/rdma-headers failed: what it said is above")
        return self._compiled("newest", "-isystem", found.stdout.strip())

    @functools.cached_property
    def mooncake(self):
        """The directory of Mooncake, which is fetched when a case first wants it."""
        return self._fetched("mooncake", "contents")

    @functools.cached_property
    def nixl(self):
        """The directory of NIXL, which is fetched when a case first wants it. It brings a libibverbs
        of another name, beside which ours comes first."""
        directory = self._fetched("nixl", "contents")
        for theirs in directory.glob("*.libs/libibverbs-*"):
            (self.directory / "lib" / theirs.name).symlink_to("libibverbs.so.1")
        return directory

    @functools.cached_property
    def ceph(self):
        """The directory of Ceph, which is fetched when a case first wants it."""
        return self._fetched("ceph", "cluster")

    def _fetched(self, name, program):
        """Copies what ci/NAME fetches, and a program of ours for it."""
        found = subprocess.run([ROOT / "ci" / name], capture_output=True, text=True)
        if found.returncode == 3:
            raise NotRun(found.stderr.strip())
        expect(found.returncode == 0, f"ci/{name} failed:", found.stderr)
        directory = self.directory / name
        shutil.copytree(found.stdout.strip(), directory, symlinks=True)
        shutil.copy(ROOT / "ci/programs.d" / name / program, directory)
        return directory

    def _compiled(self, name, *headers):
        directory = self.directory / name
        directory.mkdir()
        for source in sorted((ROOT / "ci/programs.d/c").glob("*.c")):
            # What a program needs of the two libraries; one that loads them itself needs nothing.
            call("gcc", "-O2", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror", *headers, "-o", directory / source.stem, source,
                 "-Wl,--as-needed", "-lrdmacm", "-libverbs")
        return directory

    def namespace(self, side):
        return f"rnic-programs-{side}-{os.getpid()}-0"

    def inside(self, side, *command):
        """The command line in a side's namespace. (`ip netns exec` hides the BPF file system.)"""
        return ["nsenter", f"--net=/run/netns/{self.namespace(side)}", *command]

    def _link(self):
        for side in SIDES:
            call("ip", "netns", "add", self.namespace(side))
            self._things.callback(call, "ip", "netns", "delete", self.namespace(side), check=False)
        if self.lossy:
            self._stand_between()
        else:
            self._cable(*SIDES, *map(self.namespace, SIDES))
        for side, (address, address6) in SIDES.items():
            ip = ("ip", "-n", self.namespace(side))
            call(*ip, "address", "add", f"{address}/24", "dev", side)
            call(*ip, "address", "add", f"{address6}/64", "dev", side, "nodad")
            call(*ip, "link", "set", "lo", "up")
            call(*ip, "link", "set", side, "up")
        for side in SIDES:
            # Once it is up: then its peer sends frames that XDP programs redirect to it.
            call(*self.inside(side, "ethtool", "-K", side, "gro", "on"))
            # The kernel tells of a carrier a little later.
            while "state UP" not in call("ip", "-n", self.namespace(side), "link", "show", side):
                time.sleep(0.02)
        if self.lossy:
            self._begin_to_lose()
        for side in SIDES:
            # Until the link-local address is the host's, it asks for no neighbour over IPv6.
            while call("ip", "-n", self.namespace(side), "address", "show", side, "tentative"):
                time.sleep(0.1)

    @staticmethod
    def _cable(one, other, namespace, other_namespace):
        call("ip", "link", "add", one, "netns", namespace, "type", "veth", "peer", "name", other, "netns", other_namespace)

    def _stand_between(self):
        """Makes a namespace between both, with a cable to each."""
        middle = self.namespace("middle")
        call("ip", "netns", "add", middle)
        self._things.callback(call, "ip", "netns", "delete", middle, check=False)
        for side in SIDES:
            self._cable(side, f"to-{side}", self.namespace(side), middle)
            call("ip", "-n", middle, "link", "set", f"to-{side}", "addrgenmode", "none", "up")
            # It takes frames that XDP programs redirect to it, and makes no longer ones of them.
            call("ip", "-n", middle, "link", "set", f"to-{side}", "gro_max_size", 1000)
            call("nsenter", f"--net=/run/netns/{middle}", "ethtool", "-K", f"to-{side}", "gro", "on")
            # The kernel's frames pass as they are on a wire, with their checksum.
            call(*self.inside(side, "ethtool", "-K", side, "tx", "off"))

    def _begin_to_lose(self):
        command = ["python3", ROOT / "ci/lib/lossy.py", "0.01", *(f"to-{side}" for side in SIDES)]
        self._box = Process(self.directory, "box", self.inside("middle", *command), {})
        self._things.callback(self._box.stop)
        self.wait("frames are passed on", lambda: "forwarding" in self._box.said(), self._box)

    def octets_sent(self, side):
        """Returns how many octets a host's kernel has sent by IP, to itself too."""
        shown = call(*self.inside(side, "cat", "/proc/net/netstat", "/proc/net/snmp6"))
        names, values = re.findall(r"^IpExt: (.*)", shown, re.MULTILINE)
        sent = dict(zip(names.split(), values.split()))["OutOctets"]
        return int(sent) + int(re.search(r"^Ip6OutOctets\s+(\d+)", shown, re.MULTILINE)[1])

    def number_lost(self):
        """Returns how many frames were lost, in tens."""
        return max(map(int, re.findall(r"^(\d+)\n", self._box.said(), re.MULTILINE)), default=0)

    def _share(self):
        bpf = self.directory / "bpf"
        bpf.mkdir()
        call("mount", "-t", "bpf", "bpf", bpf)
        self._things.callback(call, "umount", bpf, check=False)
        for side in SIDES:
            place = self.directory / side
            place.mkdir()
            rules = ('listeners = 1024\nconnections = 16384\nports = 64\nframes = 1048576\n'
                     'listen = ["1024-65535"]\nrate = "none"\npeers = "all"\n')
            (place / "rnicd.toml").write_text(
                f'socket_group = "nogroup"\nautomatic_ports = "20000-32767"\n[defaults]\n{rules}[[device]]\nname = "{side}"\n')
            options = ["--config", place / "rnicd.toml", "--socket", place / "socket", "--state", place / "state", "--pins",
                       bpf / side]
            rnicd = Process(self.directory, f"rnicd-{side}", self.inside(side, self.directory / "rnicd", *options), {})
            self._things.callback(call, *self.inside(side, self.directory / "rnicd", "--unshare", *options), check=False)
            self._things.callback(rnicd.stop)
            self.wait(f"rnicd shares {side}", lambda said=rnicd.said, side=side: f" shares {side}:" in said(), rnicd)

    @staticmethod
    def wait(what, is_so, process, seconds=30):
        deadline = time.monotonic() + seconds
        while not is_so():
            expect(process.running(), f"{what}: it ended before:", process.said())
            expect(time.monotonic() < deadline, f"{what}: not within {seconds} s:", process.said())
            time.sleep(0.05)

    def wait_free(self, side, port):
        """Waits until rnicd has taken back what the last case's server had."""
        deadline = time.monotonic() + 30
        while self.listens(side, port, False):
            expect(time.monotonic() < deadline, f"port {port} of {side} does not become free")
            time.sleep(0.05)

    def environment(self, side):
        socket = self.directory / side / "socket" if self.way in (SHARED, ONE_HOST) else "/nowhere"
        return {"RNICD_SOCKET": str(socket), "HOME": str(self.place), "TMPDIR": str(self.place)}

    def via(self, name):
        """Returns what carries the connections of the server or the client."""
        if self.way in (SHARED, ONE_HOST):
            return "rnicd"
        alone = {ALONE: ("server", "client"), TO_XDP: ("server",), FROM_XDP: ("client",)}
        return "xdp" if name in alone.get(self.way, ()) else "kernel"

    @functools.cached_property
    def confined(self):
        """The words in front of a program that make it one of a container without any right: no user,
        no capability, Docker's seccomp profile, nothing but `place` to write to."""
        call("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", self.directory / "confined", ROOT / "ci/programs.d/confined.c")
        own_root = f'mount --bind {self.place} {self.place} && mount -o remount,ro,bind / && cd {self.place} && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", own_root, "sh", *NOBODY, self.directory / "confined"]

    def start(self, name, side, command):
        """Starts a program of a case: the server, or the client."""
        via = self.via(name)
        if (self.way, name) in ((ARM_SERVER, "server"), (ARM_CLIENT, "client")):
            # In mounts of its own: what is built, the kernel's files, and a place to write to.
            mounts = (f"mount -t proc proc {self.arm_root}/proc && "
                      f"mount -t sysfs sysfs {self.arm_root}/sys && mount --bind /dev {self.arm_root}/dev && "
                      f"mount --bind {self.directory}/arm {self.arm_root}/mnt && mount --bind {self.place} {self.arm_root}/tmp")
            words = ["/mnt/rnic", "run", "--via", via, "--netdev", side, *shlex.split(command)]
            emulated = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec chroot {self.arm_root} "$@"', "sh", *words]
            return Process(self.directory, name, self.inside(side, *emulated), {"HOME": "/tmp", "TMPDIR": "/tmp"})
        user = {"xdp": [], "rnicd": NOBODY}.get(via) if via != "kernel" else self.confined
        # Both ends are on one kernel, which has shared memory for those who look for it.
        apart = ["unshare", "--ipc"]
        # On one host sockets need no interface.
        netdev = [] if self.way == KERNEL_HOST else ["--netdev", side]
        words = [self.directory / "rnic", "run", "--via", via, *netdev, *shlex.split(command)]
        # Some leave files where they run.
        return Process(self.directory, name, self.inside(side, *apart, *user, *words), self.environment(side), self.place)

    def listens(self, side, port, in_kernel):
        """Returns whether a server listens at a TCP port."""
        via = self.via("server")
        if in_kernel or via == "kernel":
            tables = call(*self.inside(side, "cat", "/proc/net/tcp", "/proc/net/tcp6"))
            return any(f":{port:04X} " in line and " 0A " in line for line in tables.splitlines())
        ask = ["lease", "show"] if via == "rnicd" else ["steering", "--netdev", side]
        command = [self.directory / "rnic-ctl", "-j", *ask]
        done = subprocess.run(list(map(str, self.inside(side, *command))), capture_output=True, text=True,
                              env={**os.environ, **self.environment(side)})
        if done.returncode != 0:  # no program has the interface yet
            return False
        said = json.loads(done.stdout)
        entries = said["steered"] if via == "xdp" else [each["lease"] for each in said]
        return any(re.search(rf":{port}(?!\d)", entry) for entry in entries)

    def run(self, case):
        """Runs a case, which raises `Failed` if it fails."""
        west, east = SIDES
        if self.way in (ONE_HOST, KERNEL_HOST):
            east = west

        def filled(command, side):
            words = {"server": SIDES[west][0], "server6": SIDES[west][1], "client": SIDES[east][0],
                     "device": "rnic_any" if self.way == KERNEL_HOST else f"rnic_{side}", "place": self.place, "files": self.files,
                     "other_host": f"{self.namespace(west)} {west} {self.directory}/rnic"}
            return re.sub(r"\{(\w+)\}", lambda found: str(words.get(found[1]) or getattr(self, found[1])), command)

        for path in self.place.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        before = self.number_lost() if case.lost else 0
        sent_before = {side: self.octets_sent(side) for side in SIDES}
        with contextlib.ExitStack() as running:
            server = None
            if case.server:
                if case.port:
                    self.wait_free(west, case.port)
                server = self.start("server", west, filled(case.server, west))
                running.callback(server.stop)
                if case.port:
                    self.wait("the server listens", lambda: self.listens(west, case.port, case.kernel), server)
                if case.ready:
                    self.wait("the server is ready", lambda: re.search(case.ready, server.said()), server)
            client = self.start("client", east, filled(case.client, east))
            running.callback(client.stop)
            self._judge(case, client, server)
        if self.way in FRAMES:
            sent = {side: self.octets_sent(side) - sent_before[side] for side in SIDES}
            expect(max(sent.values()) < KERNELS_MOST, "what rnic was to carry went by the kernel's IP, in octets:", sent)
        if case.lost:
            lost = self.number_lost() - before
            expect(lost >= case.lost, f"{lost} frames were lost, not {case.lost} at least")

    @staticmethod
    def _judge(case, client, server):
        def said():
            return f"-- the client:\n{client.said()}" + (f"\n-- the server:\n{server.said()}" if server else "")

        try:
            if case.stopped_after:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    client._process.wait(case.stopped_after)
                expect(client.running(), "the client ended before it was stopped:")
                client.signal(signal.SIGINT)
            code = client.end(case.seconds)
            expect(code == case.code, f"the client ended with {code}, not {case.code}:")
            if server and case.lasting:
                expect(server.running(), "the server ended too:")
                server.stop()
            elif server:
                code = server.end(case.seconds)
                expect(code == case.server_code, f"the server ended with {code}, not {case.server_code}:")
            for name, patterns, process in (("client", case.says, client), ("server", case.server_says, server)):
                for pattern in patterns:
                    found = re.search(pattern, process.said(), re.MULTILINE)
                    expect(found, f"the {name} does not say '{pattern}':")
        except Failed as failure:
            raise Failed(f"{failure}\n{said()}") from None
