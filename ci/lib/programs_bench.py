#!/usr/bin/env python3
"""Unmodified RDMA programs over rnic: perftest beside rnic-ctl perf, perftest that connects its
queue pairs itself beside perftest over rdma_cm, and qperf beside its own tests of the kernel's TCP.

    ci/bench programs                      some minutes
    ci/bench programs --repetitions N      N rounds (5)
    ci/bench programs --quick              one short round: only whether it runs

Two network namespaces, joined by a veth pair; each end has its interface for itself, and one CPU
where there are two. The tests of a round alternate, and a ratio is the median of the rounds' own
ratios. What was aimed at stands beside it. Needs root and the packages of `ci/deps programs`.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import programs  # noqa: E402
from machine import leave_nothing_behind  # noqa: E402
from programs import ALONE, SIDES, Failed, Process, expect  # noqa: E402

WEST, EAST = SIDES
SERVER = SIDES[WEST][0]
# Where perftest connects its queue pairs itself, its port is the kernel's, which keeps it in TIME-WAIT.
PERF_PORT, PERFTEST_PORT, EXCHANGE_PORT, QPERF_PORT = 18515, 18515, 18600, 19765
# The most that perftest may take of what rnic-ctl perf takes, and that it may give less; the same
# without rdma_cm of what it takes with it; the most that a round trip by RDMA may take of one by
# the kernel's TCP.
WITHIN, WITHOUT_CM, LATENCY = 1.1, 1.02, 0.6
UNITS = {"ns": 1e-3, "us": 1, "ms": 1e3, "sec": 1e6, "bytes/sec": 8e-9, "KB/sec": 8e-6, "MB/sec": 8e-3, "GB/sec": 8}


class Measurements:
    """The programs' results: microseconds for a latency, Gbit/s for a bandwidth."""

    def __init__(self, hosts, quick):
        self.hosts = hosts
        self.latencies, self.messages = ("500", "200") if quick else ("50000", "20000")
        self.seconds = 1 if quick else 3
        # Without a second CPU the ends take turns on the first.
        self.cpus = dict(zip(SIDES, sorted(os.sched_getaffinity(0))[:2] * 2))

    def pinned(self, side, *command):
        return ["taskset", "-c", str(self.cpus[side]), *command]

    def ends(self, server, client, port, lasting=False, kernel=False):
        """Runs a server and its client. Returns what the client says."""
        self.hosts.wait("the server listens", lambda: self.hosts.listens(WEST, port, kernel), server)
        started = client()
        try:
            code = started.end(120)
            expect(code == 0, f"the client ended with {code}:", started.said(), "the server:", server.said())
            if not lasting:
                expect(server.end(60) == 0, "the server failed:", server.said())
            return started.said()
        finally:
            started.stop()
            server.stop()

    def perf(self, test, size):
        """rnic-ctl perf."""
        kind = test.rsplit("_", 1)[1]
        count = self.latencies if kind == "lat" else self.messages
        words = ["-j", "perf", test.replace("_", "-"), "-s", size, "-n", count]

        def start(name, side, *peer):
            command = self.pinned(side, self.hosts.directory / "rnic-ctl", *words, "--netdev", side, *peer)
            return Process(self.hosts.directory, name, self.hosts.inside(side, *command), self.hosts.environment(side))

        said = self.ends(start("server", WEST), lambda: start("client", EAST, SERVER), PERF_PORT)
        result = json.loads(said[said.index("{"):])["results"][0]
        return result["t_typical"] if kind == "lat" else bandwidth(result["MsgRate"], size)

    def perftest(self, test, size):
        """The program of perftest of that name, over rdma_cm."""
        return self.perftest_row(f"ib_{test} -R", test, size, PERFTEST_PORT)

    def exchanging(self, test, size):
        """The same, which connects its queue pairs itself. Its Sends run where the device calls itself
        RoCE."""
        label = "--as roce " if test.startswith("send") else ""
        return self.perftest_row(f"ib_{test} -p {EXCHANGE_PORT}", test, size, EXCHANGE_PORT, label, kernel=True)

    def perftest_row(self, program, test, size, port, label="", **how):
        """Returns what the one row of the program's table says."""
        kind = test.rsplit("_", 1)[1]
        count = self.latencies if kind == "lat" else self.messages
        program = f"{program} -F -s {size} -n {count}"
        said = self.ends(self.run("server", WEST, program, label),
                         lambda: self.run("client", EAST, f"{program} {SERVER}", label), port, **how)
        row = re.search(rf"^ *{size} +\d+ +(.*)$", said, re.MULTILINE)
        expect(row, f"ib_{test} prints no row of {size} octets:", said)
        numbers = [float(word) for word in row[1].split()]
        return numbers[2] if kind == "lat" else bandwidth(numbers[2], size)

    def qperf(self, test):
        server = self.run("server", WEST, "qperf")
        rdma = "-cm1 " if test.startswith("rc_") else ""
        said = self.ends(server, lambda: self.run("client", EAST, f"qperf {SERVER} -t {self.seconds} {rdma}{test}"), QPERF_PORT, lasting=True,
                         kernel=True)
        found = re.search(r"^ +(?:latency|bw) += +([\d.,]+) (\S+)", said, re.MULTILINE)
        expect(found, f"qperf {test} prints no result:", said)
        return float(found[1].replace(",", "")) * UNITS[found[2]]

    def run(self, name, side, command, label=""):
        return self.hosts.start(name, side, label + " ".join(self.pinned(side, command)))


def bandwidth(millions, size):
    """Gbit/s of so many million messages a second."""
    return millions * 1e6 * int(size) * 8 / 1e9


def rows():
    """What is measured: a title, the two measurements, and what their ratio may be, at most or at
    least."""
    for operation in ("write", "read", "send"):
        for kind, size in (("lat", "64"), ("bw", "65536")):
            test = f"{operation}_{kind}"
            perftest, perf = ("perftest", test, size), ("perf", test, size)

            def limit(most, by_time=kind == "lat"):
                return ("at most", most) if by_time else ("at least", 1 / most)

            yield f"ib_{test} -s {size}", "rnic-ctl perf", perftest, perf, limit(WITHIN)
            yield f"ib_{test}, self-connected", "over rdma_cm", ("exchanging", test, size), perftest, limit(WITHOUT_CM)
    for test, kernel in (("rc_lat", "tcp_lat"), ("rc_rdma_write_lat", "tcp_lat")):
        yield f"qperf {test}", f"qperf {kernel}", ("qperf", test), ("qperf", kernel), ("at most", LATENCY)
    # Both ends wait by reading their memory, so that the thread that stands by has to share their
    # CPU.
    yield "qperf rc_rdma_write_poll_lat", "qperf tcp_lat", ("qperf", "rc_rdma_write_poll_lat"), ("qperf", "tcp_lat"), None
    yield "qperf rc_bw", "qperf tcp_bw", ("qperf", "rc_bw"), ("qperf", "tcp_bw"), None


def show(title, beside, ours, theirs, limit):
    ratio = statistics.median(one / other for one, other in zip(ours, theirs))
    unit = "us" if "lat" in title else "Gbit/s"
    verdict = ""
    if limit:
        word, bound = limit
        holds = ratio <= bound if word == "at most" else ratio >= bound
        verdict = f"{word} {bound:.2f}: {'holds' if holds else 'MISSED'}"
    print(f"{title:29} {statistics.median(ours):9.2f} {unit:6}  {beside:14} {statistics.median(theirs):9.2f} {unit:6}  "
          f"ratio {ratio:5.2f}  {verdict}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    leave_nothing_behind()
    with programs.Hosts(ALONE) as hosts:
        measurements = Measurements(hosts, options.quick)
        for title, beside, ours, theirs, limit in rows():
            results = [(getattr(measurements, ours[0])(*ours[1:]), getattr(measurements, theirs[0])(*theirs[1:]))
                       for _ in range(1 if options.quick else options.repetitions)]
            show(title, beside, *zip(*results), limit)


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"ci/bench programs: {failure}")
