"""The tools of the cases in ci/interop.d: both sides, what they printed, and what was on the
wire."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import siw

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILT = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / os.environ.get("RNIC_PROFILE", "release")
CTL = pathlib.Path(os.environ.get("RNIC_CTL") or BUILT / "rnic-ctl")
# Our program for cases that rnic-ctl cannot do: rnic-ctl/examples/play.
PLAY = CTL.parent / "examples" / "play"
OURS, SIW = "10.78.0.1", "10.78.0.2"
# siw's responder can leave data unread that come within a few milliseconds of its MPA Reply.
PATIENT = ["--first-fpdu-delay", "20"]
CASES = []
# What carries our connections: `xdp`, or `kernel` for TCP sockets.
VIA = "xdp"

# The path of a case's frames: over a bridge, where both directions can be captured; to our AF_XDP
# socket on the guest's tap itself; or through ci/lib/mangle.py, which changes some of them.
BRIDGE, TAP, MANGLED = "bridge", "tap", "mangled"


class Failed(Exception):
    """A case failed: the text says what it expected and what it saw."""


def expect(holds, what, *seen):
    if not holds:
        raise Failed("\n".join([what, *map(str, seen)]))


def case(name, way=BRIDGE, frames_only=False):
    """Registers a case, which is called with a Bench. `frames_only`: not over sockets."""

    def register(function):
        CASES.append((name, way, function, frames_only or way == TAP))
        return function

    return register


class Ours:
    """A program of ours in the namespace."""

    def __init__(self, bench, command):
        self._command = command
        self._log = bench.lan.directory / f"ours-{time.monotonic_ns()}.log"
        with open(self._log, "wb") as log:
            self._process = siw.start(bench.lan.inside(*command), stdout=log, stderr=subprocess.STDOUT)

    def said(self):
        return self._log.read_text(errors="replace")

    def ready(self, word="listening"):
        """Waits until it prints `word`: by default that it listens."""
        return self.until(lambda: word in self.said(), f"says '{word}'")

    def until(self, is_so, what):
        """Waits until something is so, while it runs."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if is_so():
                return self
            expect(self.running(), f"{self} ended early:", self.said())
            time.sleep(0.05)
        raise Failed(f"it never {what}: {self}\n{self.said()}")

    def running(self):
        return self._process.poll() is None

    def end(self, seconds=60):
        """Waits for its end, at most for a time, and returns its exit code."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self} does not end:\n{self.said()}") from None

    def stop(self):
        siw.stop(self._process, signal.SIGINT)

    def __str__(self):
        return " ".join(map(str, self._command))


class Bench:
    """Both sides of a case: siw in its machine, ours on an interface, and a new port for each
    case."""

    def __init__(self, lan, interface, vm, port):
        self.lan = lan
        self.interface = interface
        self.vm = vm
        self.port = port
        self._cleanup = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._cleanup.close()

    def ours(self, *command):
        ours = Ours(self, command)
        self._cleanup.callback(ours.stop)
        return ours

    def _rping(self, *options):
        return self.ours(CTL, "rping", *options, "-p", self.port, "--netdev", self.interface, "--via", VIA)

    def serve(self, *options):
        return self._rping("-s", "-a", OURS, *options).ready()

    def connect(self, *options):
        return self._rping("-c", "-a", SIW, *PATIENT, *options)

    def siw_serves(self, command, timeout=60):
        """Starts a server in the guest; `{port}` stands for the case's port."""
        return self.vm.listen(self._filled(command), self.port, timeout)

    def siw_starts(self, command, timeout=60):
        return self.vm.spawn(self._filled(command), timeout)

    def siw_runs(self, command, timeout=60):
        return self.siw_starts(command, timeout).wait()

    def _filled(self, command):
        return command.replace("{port}", str(self.port)).replace("{host}", OURS)

    @contextlib.contextmanager
    def switches(self, **values):
        """Sets module parameters of siw for a while: see ci/siw-image."""
        before = {name: self.vm.switch(name, value) for name, value in values.items()}
        try:
            yield
        finally:
            for name, value in before.items():
                self.vm.switch(name, value)

    def capture(self):
        return self.lan.capture(f"{self.interface}-br")

    @contextlib.contextmanager
    def mangling(self, rules):
        """Forwards frames for a while, and changes some: see ci/lib/mangle.py. Yields the
        program."""
        path = self.lan.directory / f"rules-{self.port}"
        path.write_text(json.dumps(rules))
        program = self.ours(sys.executable, ROOT / "ci" / "lib" / "mangle.py", f"{self.interface}-br", "tap0", path)
        try:
            yield program.ready("forwarding")
        finally:
            program.stop()


# ---- What was on the wire ----


def startup(capture):
    """Returns the MPA start-up frames on the wire, in order: (sender, revision, CRC flag, private
    data)."""
    frames = []
    for layers in capture.packets("iwarp_mpa.rev"):
        one = {key: next(siw.find(layers, f"iwarp_mpa.{key}"), None)
               for key in ("rev", "crc_flag", "privatedata")}
        frames.append((layers["ip"]["ip.src"], int(one["rev"]), one["crc_flag"], one["privatedata"]))
    return frames


def expect_revision(capture, revision):
    frames = startup(capture)
    expect([frame[1] for frame in frames] == [revision, revision],
           f"Request and Reply are not both of revision {revision}:", frames)


def crc_fields(capture):
    """Returns the CRC field of every FPDU."""
    for layers in capture.packets("iwarp_mpa.crc || iwarp_mpa.crc_check"):
        for key in ("iwarp_mpa.crc", "iwarp_mpa.crc_check"):
            for value in siw.find(layers, key):
                yield from value if isinstance(value, list) else [value]


def expect_crcs(capture, used):
    fields = [int(field, 16) for field in crc_fields(capture)]
    expect(fields, "the capture holds no FPDU")
    zero = fields.count(0)
    expect(zero == 0 if used else zero == len(fields),
           f"CRCs are {'not ' if used else ''}used: {zero} of {len(fields)} fields are zero")


def terminates(capture):
    """Returns each Terminate on the wire, in order, as "sender layer/type/code", in the RFC's order
    of bits."""
    shown = []
    for sender, control in capture.terminates():
        layer, kind = control[0] >> 4, control[0] & 15
        if sender == SIW:  # its layer and error type are swapped
            layer, kind = kind, layer
        shown.append(f"{'siw' if sender == SIW else 'ours'} {layer}/{kind}/{control[1]:02x}")
    return shown


def expect_terminates(capture, *wanted):
    found = terminates(capture)
    expect(found == list(wanted), f"expected these Terminates: {', '.join(wanted)}; seen:", *found)


WRITE_BAD_STAG = "1/1/00"  # DDP, tagged buffer error, invalid STag
READ_BAD_STAG = "0/1/00"  # RDMAP, remote protection error, invalid STag
