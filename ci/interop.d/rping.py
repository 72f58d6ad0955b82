"""rping at either end: rnic-ctl's against rdma-core's, and cases that only rnic-ctl's can do."""

import json
import re
import time

import siw
from bench import (
    CTL, READ_BAD_STAG, SIW, TAP, case, expect, expect_crcs, expect_revision, expect_terminates,
)


def siw_pings_us(bench, ours=(), theirs="-C 10 -V"):
    """Our rping server, the real rping as its client."""
    server = bench.serve(*ours)
    client = bench.siw_runs("rping -c -v -a {host} -p {port} " + theirs)
    code = server.end()
    expect(client.code == 0, f"the guest's rping ended with {client.code}:", client.output, server.said())
    rounds = int(re.search(r"-C (\d+)", theirs).group(1))
    expect(client.output.count("ping data: rdma-ping") == rounds,
           f"the guest's rping does not report {rounds} pings:", client.output, server.said())
    expect(code == 0, f"our server ended with {code}:", server.said())


def we_ping_siw(bench, ours=("-C", 10, "-V"), theirs="rping -s -v -p {port}"):
    """The real rping's server, ours as its client."""
    server = bench.siw_serves(theirs)
    client = bench.connect(*ours)
    code = client.end()
    expect(code == 0, f"our client ended with {code}:", client.said(), server.wait().output)
    served = server.wait()
    # When it ends, its thread for events may read the channel that main() has closed, and ends it with
    # a code of its own.
    ended = served.code == 0 or (served.code == 255 and "rdma_get_cm_event: Bad file descriptor" in served.output)
    expect(ended, f"the guest's server ended with {served.code}:", served.output)
    return served.output


@case("rping: siw connects")
def _(bench):
    with bench.capture() as capture:
        siw_pings_us(bench)
    expect_revision(capture, 2)


@case("rping: we connect")
def _(bench):
    with bench.capture() as capture:
        served = we_ping_siw(bench)
    expect(served.count("server ping data: rdma-ping") == 10, "the server does not report 10 pings", served)
    expect_revision(capture, 2)
    expect_crcs(capture, used=True)


@case("rping: siw connects, 65000 octets")
def _(bench):
    siw_pings_us(bench, ours=["-S", 65000], theirs="-C 20 -V -S 65000")


@case("rping: we connect, 65000 octets")
def _(bench):
    we_ping_siw(bench, ["-C", 20, "-V", "-S", 65000], "rping -s -p {port} -S 65000")


@case("rping: siw connects, odd size")
def _(bench):
    siw_pings_us(bench, ours=["-S", 4001], theirs="-C 20 -V -S 4001")


@case("rping: we connect, without CRC")
def _(bench):
    with bench.capture() as capture:
        we_ping_siw(bench, ["-C", 10, "-V", "--no-crc"])
    expect_crcs(capture, used=False)


@case("rping: siw connects, both without CRC")
def _(bench):
    with bench.capture() as capture:
        siw_pings_us(bench, ours=["--no-crc"])
    expect_crcs(capture, used=False)


@case("rping: siw connects and asks for CRC")
def _(bench):
    with bench.switches(mpa_crc_required="Y"), bench.capture() as capture:
        siw_pings_us(bench, ours=["--no-crc"])
    expect_crcs(capture, used=True)


@case("MPA revision 1: siw connects")
def _(bench):
    with bench.switches(mpa_version=1), bench.capture() as capture:
        siw_pings_us(bench)
    expect_revision(capture, 1)


@case("MPA revision 1: we connect")
def _(bench):
    with bench.capture() as capture:
        # rdma-core's rping takes its depths from the peer, and revision 1 states none.
        we_ping_siw(bench, ["-C", 10, "-V", "--mpa-revision", 1], "siw-peer pong {port}")
    expect_revision(capture, 1)


@case("peer-to-peer: siw connects, ready-to-receive message")
def _(bench):
    with bench.switches(peer_to_peer="Y"):
        siw_pings_us(bench)


@case("reject with private data: we reject")
def _(bench):
    server = bench.serve("--reject", "no room at the inn")
    client = bench.siw_runs("siw-peer connect {host} {port} hello-rnic")
    expect("reply_private_data=no room at the inn\n" in client.output, "siw did not get our reason:",
           client.output, server.said())
    expect("rejected=" in client.output, "siw does not see a rejection:", client.output)
    expect(server.end() == 0, "our server failed:", server.said())
    expect("hello-rnic" in server.said(), "our server does not show siw's private data:", server.said())


@case("reject with private data: siw rejects")
def _(bench):
    server = bench.siw_serves("siw-peer reject {port} no-room-at-the-inn")
    client = bench.connect("-C", 1, "--private-data", "hello-siw")
    expect(client.end() not in (0, 101), "our client does not fail when it is rejected:", client.said())
    expect("no-room-at-the-inn" in client.said(), "our client does not show siw's reason:", client.said())
    served = server.wait().output
    expect("request_private_data=hello-siw\n" in served, "siw did not get our private data:", served)


@case("bad rkey: the real rping reads what our client advertised wrongly")
def _(bench):
    with bench.capture() as capture:
        server = bench.siw_serves("rping -s -v -p {port}")
        client = bench.connect("-C", 1, "--bad-rkey")
        expect(client.end() not in (0, 101), "our client does not fail:", client.said())
        server.wait()
    expect_terminates(capture, f"ours {READ_BAD_STAG}")


@case("bad rkey: we read from siw")
def _(bench):
    with bench.capture() as capture:
        server = bench.serve("--bad-rkey")
        bench.siw_runs("rping -c -C 1 -a {host} -p {port}")
        expect(server.end() not in (0, 101), "our server does not fail:", server.said())
    expect_terminates(capture, f"siw {READ_BAD_STAG}")
    expect("erminate" in server.said(), "our server does not name the Terminate:", server.said())


def kernel_tcp(lan):
    """Segments that the kernel's TCP of the namespace has seen, in and out."""
    lines = siw.call(*lan.inside("cat", "/proc/net/snmp")).splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    counters = dict(zip(names, values))
    return int(counters["InSegs"]), int(counters["OutSegs"])


def settled_kernel_tcp(lan):
    """Returns that once it has not changed for a second: traffic that earlier cases left is
    over."""
    deadline = time.monotonic() + 60
    before = kernel_tcp(lan)
    while time.monotonic() < deadline:
        time.sleep(1)
        now = kernel_tcp(lan)
        if now == before:
            return now
        before = now
    raise siw.GuestError("the kernel's TCP goes on sending")


@case("the kernel's TCP stays out of it", frames_only=True)
def _(bench):
    server = bench.siw_serves("rping -s -v -p {port}")
    before = settled_kernel_tcp(bench.lan)
    client = bench.connect("-C", 0, "-V")
    deadline = time.monotonic() + 60
    redirected = 0
    while redirected <= 20:
        expect(time.monotonic() < deadline, f"only {redirected} frames were steered:", client.said())
        time.sleep(0.2)
        try:
            steered = siw.call(*bench.lan.inside(CTL, "steering", "--netdev", bench.interface, "-j"))
        except siw.GuestError:
            continue  # it has not attached its program yet
        redirected = json.loads(steered)["frames"]["redirected"]
    after = kernel_tcp(bench.lan)
    expect(after == before, f"the kernel's TCP saw segments: {before} (in, out) before, {after} after")
    client.stop()
    server.kill()


@case("tap: siw connects", TAP)
def _(bench):
    siw_pings_us(bench, ours=["-S", 65000], theirs="-C 20 -V -S 65000")


@case("tap: we connect", TAP)
def _(bench):
    we_ping_siw(bench, ["-C", 20, "-V", "-S", 65000], "rping -s -p {port} -S 65000")
