"""What the cases of ci/nic are written with."""

import contextlib
import json
import os
import pathlib

import nic

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CTL = pathlib.Path(os.environ.get("RNIC_CTL") or
                   pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "release" / "rnic-ctl")
RNICD = CTL.with_name("rnicd")
CASES = []


class Failed(Exception):
    """What a case expected and what it saw."""


def expect(holds, what, *seen):
    if not holds:
        raise Failed("\n".join([what, *map(str, seen)]))


# Every kind that has a way of its own through rnic.
EACH = tuple(nic.KINDS)


def case(name, kinds=("igb", "virtio"), long=False):
    """Registers a case. It gets a Nics."""

    def register(function):
        CASES.append((name, kinds, long, function))
        return function

    return register


def expect_no_complaints(bed):
    """The guest's kernel has reported no fault of its own, such as a WARNING or an Oops."""
    complaint = bed.guest.complaint()
    expect(not complaint, complaint)


def listening(bed, side, command, timeout=60):
    """Starts a program on a side of the guest, and returns when it says that it listens."""
    job = bed.spawn(side, f"exec {command}", timeout)
    bed.wait(lambda: "listening" in job.output() or not job.running(), f"'{command}' listens", seconds=30)
    expect("listening" in job.output(), f"'{command}' ended early:", job.wait().output if not job.running() else "")
    return job


# The last frame that a capture waits for: a datagram to the port "discard" of a group, which nobody
# answers.
LAST = "udp dst port 9"
SEND_LAST = """python3 -c '
import socket
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("{own}"))
sender.sendto(b"last", ("224.0.0.1", 9))' """


@contextlib.contextmanager
def tcpdump(bed, side, path, filter):
    """Captures what matches on a side's NIC, or is LAST. At the end of the `with`, all of it is in
    the file."""
    interface, own = nic.SIDES[side]
    options = f"-i {interface} -U --immediate-mode -s 2000 -B 16384 -Z root"
    job = bed.spawn(side, f"exec tcpdump {options} -w {path} '({filter}) or {LAST}' 2>&1", 120)
    bed.wait(lambda: "listening" in job.output() or not job.running(), "tcpdump listens")
    expect(job.running(), "tcpdump ended early:", job.output())
    try:
        yield
        # What tcpdump has not read when it is ended is lost.
        bed.run(side, SEND_LAST.format(own=own)).checked()
        bed.wait(lambda: bed.guest.run(f"tcpdump -r {path} '{LAST}' 2>/dev/null").output.strip(), "tcpdump has written all")
    finally:
        if job.running():
            job.kill()
        said = job.wait().output
    expect("0 packets dropped by kernel" in said, "tcpdump has not seen all:", said)


class Nics:
    """Both sides of the guest in a case."""

    def __init__(self, bed):
        self.bed = bed
        self.kind = bed.kind
        self.ctl = CTL

    def east(self, command, timeout=60):
        return self.bed.run("east", command, timeout)

    def west(self, command, timeout=60):
        return self.bed.run("west", command, timeout)

    def both(self, command, timeout=60):
        """Runs a command on each side, with {nic} for its interface."""
        for side, (interface, _) in nic.SIDES.items():
            self.bed.run(side, command.format(nic=interface), timeout).checked()
        self.wait_for_carrier()

    def wait_for_carrier(self):
        self.bed.wait_for_carrier()

    def serve(self, what, options="", timeout=60, side="west"):
        """rnic-ctl as a server on a side, listening."""
        interface, _ = nic.SIDES[side]
        return listening(self.bed, side, f"{self.ctl} {what} --netdev {interface} {options}", timeout)

    def perf(self, test, options="", server="", host=nic.WEST, timeout=60, netdev="nic0"):
        """A measurement of the client in the east with the server in the west; its report, as
        JSON."""
        serving = self.serve(f"perf {test}", server, timeout)
        done = self.east(f"{self.ctl} -j perf {test} --netdev {netdev} {options} {host}", timeout)
        served = self.end(serving) if done.code else serving.wait()
        expect(done.code == 0 and served.code == 0,
               f"perf {test} {options} ends with {done.code}, its server with {served.code}:", done.output, served.output)
        return json.loads(done.output[done.output.index("{"):])

    def doctor(self, netdev="nic0"):
        """The facts about an interface of the east, by name."""
        done = self.east(f"{CTL} -j doctor --netdev {netdev}")
        facts = json.loads(done.output)["device"]
        self.wait_for_carrier()
        return {fact["name"]: fact for fact in facts}

    def end(self, job):
        """Ends a program as Ctrl-C does; returns how it ended."""
        if job.running():
            job.kill()
        return job.wait()

    def kill(self, side, program="rnic-ctl"):
        """Ends a program on a side as `kill -9` does."""
        self.bed.guest.run(f"""for pid in $(ip netns pids {side}); do
            [ "$(cat /proc/$pid/comm)" != {program} ] || kill -9 $pid
        done""").checked()

    def wait(self, holds, what, seconds=20):
        self.bed.wait(holds, what, seconds)
