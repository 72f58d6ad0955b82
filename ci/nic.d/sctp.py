"""rnic over the kernel's SCTP (RFC 5043): this host's kernel may have none, the guest's has."""

import contextlib
import re

from nic import EAST, WEST
from nic_cases import CTL, case, expect, tcpdump
from own_tests import of_crate

CAPTURE = "/tmp/sctp.pcap"
# Kinds of chunk (RFC 9260 section 3.2).
ABORT, COOKIE_ACK = 6, 11
FIELDS = "-e sctp.parameter_type -e sctp.adaptation_layer_indication -e sctp.data_payload_proto_id -e sctp.data_sid " \
    "-e sctp.data_u_bit"


def chunks(nics):
    """What tshark reads in the capture: of each field all values that there are, in chunks of
    whatever packets."""
    done = nics.bed.guest.run(f"HOME=/tmp tshark -r {CAPTURE} -T fields -E aggregator=, {FIELDS} 2>/dev/null", 120)
    expect(done.code == 0, "tshark cannot read what was captured:", done.output)
    columns = zip(*(line.split("\t") for line in done.output.splitlines() if line.count("\t") == 4))
    return [{value for cell in column for value in cell.split(",") if value} for column in columns]


def perf(nics, test, options):
    report = nics.perf(test, f"--sctp {options}", "--sctp")
    device = report["test_info"]["device"]
    expect("kernel SCTP" in device, "it was not SCTP that carried the connections:", device)
    return report


@case("every operation over SCTP, in chunks of RFC 5043", kinds=("virtio",))
def _(nics):
    with tcpdump(nics.bed, "west", CAPTURE, "sctp"):
        for test, options in (
            ("write-bw", "-q 4 -s 20000 -n 20 --verify"), ("send-bw", "-s 20000 -n 20 --verify"),
            ("read-bw", "-s 20000 -n 20 -t 4 --verify"), ("write-lat", "-s 1 -n 20 --verify"),
            ("send-lat", "-s 4000 -n 20 --verify"), ("atomic-bw", "-n 20"),
        ):
            perf(nics, test, options)
    parameters, indications, protocols, streams, unordered = chunks(nics)
    expect(any(int(each, 0) == 0xC006 for each in parameters), "no adaptation indication was captured:", parameters)
    expect({int(each, 0) for each in indications} == {1}, "another adaptation indication than DDP's:", indications)
    expect({int(each, 0) for each in protocols} == {16, 17}, "other chunks than those of DDP:", protocols)
    expect({int(each, 0) for each in streams} >= set(range(4)), "4 queue pairs have less than 4 streams:", streams)
    expect(unordered in ({"1"}, {"True"}), "chunks are ordered:", unordered)


@case("rping over SCTP by the environment", kinds=("virtio",))
def _(nics):
    sctp = f"env RNIC_TRANSPORT=sctp {nics.ctl} rping"
    serving = nics.bed.spawn("west", f"exec {sctp} -s -a {WEST} -C 10 -S 5000", 60)
    nics.wait(lambda: "listening" in serving.output() or not serving.running(), "rping listens")
    expect("kernel SCTP" in serving.output(), "it does not listen for SCTP:", serving.output())
    done = nics.east(f"{sctp} -c -a {WEST} -C 10 -V -S 5000")
    served = nics.end(serving)
    expect(done.code == 0, f"rping ends with {done.code}:", done.output, served.output)


def counted(nics, side, table, counter):
    """A counter of a side's kernel: of SCTP's list, or of the lines "NAME: ..." of the others'."""
    text = nics.bed.run(side, f"cat /proc/net/{table}").checked()
    if table == "sctp/snmp":
        return int(dict(line.split() for line in text.splitlines())[counter])
    names, values = (line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:"))
    return int(dict(zip(names, values))[counter])


def run_program(nics, command, octets, server="west", by_rdma_cm=True):
    """An unmodified program as server and client. The octets that it moves go over SCTP, and those that
    connect by rdma_cm send nothing over TCP."""
    client, host = ("east", WEST) if server == "west" else ("west", EAST)
    run = f"env RNIC_TRANSPORT=sctp {CTL.with_name('rnic')} run {command}"
    named = f"-a {host}" if "rping" in command else host
    counters = (("sctp/snmp", "SctpOutUnorderChunks"), ("snmp", "OutSegs"))
    before = [counted(nics, client, *counter) for counter in counters]
    serving = nics.bed.spawn(server, f"exec {run} {'-s' if 'rping' in command else ''} 2>&1", 120)
    if by_rdma_cm:
        shown = f"{nics.ctl} res show listener"
        nics.wait(lambda: " via sctp " in nics.bed.run(server, shown).output or not serving.running(), f"{command} listens")
    else:
        nics.wait(lambda: ":4853 " in nics.bed.run(server, "cat /proc/net/tcp /proc/net/tcp6").output or not serving.running(),
                  f"{command} listens")
    done = nics.bed.run(client, f"{run} {'-c' if 'rping' in command else ''} {named} 2>&1", 120)
    served = serving.wait() if done.code == 0 else nics.end(serving)
    expect(done.code == 0 and served.code == 0, f"{command} ends with {done.code}, its server with {served.code}:",
           done.output, served.output)
    chunks, segments = (counted(nics, client, *counter) - was for counter, was in zip(counters, before))
    # A chunk has less than 1500 octets.
    expect(chunks > octets / 1500, f"{command}: {chunks} chunks over SCTP for {octets} octets")
    expect(not by_rdma_cm or segments == 0, f"{command}: {segments} segments over TCP")


@case("unmodified programs over SCTP", kinds=("virtio",))
def _(nics):
    # Clients that send so many octets at least. The first and the last ones verify what arrives.
    run_program(nics, "rping -C 10 -V -S 5000", 50_000)
    run_program(nics, "rping -C 10 -V -S 5000", 50_000, server="east")
    run_program(nics, "ib_write_bw -R -F -s 65536 -n 20", 20 * 65536)
    run_program(nics, "ib_write_bw -R -F -s 65536 -n 20 -q 4", 80 * 65536)
    run_program(nics, "ib_send_lat -R -F -s 4096 -n 50", 50 * 4096, server="east")
    # Without -R they connect their queue pairs themselves.
    run_program(nics, "ib_write_lat -F -s 4096 -n 50", 50 * 4096, by_rdma_cm=False)
    run_program(nics, "ibv_rc_pingpong -g 0 -n 50 -c", 50 * 4096, by_rdma_cm=False)
    run_program(nics, "ibv_rc_pingpong -g 0 -n 50 -c -e", 50 * 4096, server="east", by_rdma_cm=False)


@case("connections over SCTP are shown by their processes", kinds=("virtio",))
def _(nics):
    serving = nics.serve("rping -s", f"--via sctp -a {WEST}")
    pinging = nics.bed.spawn("east", f"exec {nics.ctl} rping -c --via sctp --netdev nic0 -a {WEST} -C 1000000000", 120)
    try:
        show = f"{nics.ctl} -d conn show state established dev nic0 --timeout 10"
        nics.wait(lambda: " via sctp " in nics.east(show).output or not pinging.running(), "the connection is shown", 60)
        shown = nics.east(show).checked()
        expect(f" remote {WEST}:" in shown and re.search(r" rto:[1-9].* cwnd:[1-9].* snd_wnd:[1-9]", shown),
               "its facts are not shown:", shown)
    finally:
        pinged = nics.end(pinging)
        served = nics.end(serving)
    expect(served.code in (0, 130), "the server fails:", served.output, pinged.output)


@case("data over SCTP while packets are lost", kinds=("virtio",))
def _(nics):
    impair = "tc qdisc add dev {nic} root netem loss 3% delay 2ms 1ms"
    nics.both(impair)
    try:
        perf(nics, "write-bw", "-q 3 -s 20000 -n 20 --verify")
        perf(nics, "send-bw", "-q 3 -s 20000 -n 20 --verify")
        perf(nics, "read-bw", "-s 20000 -n 20 -t 4 --verify")
    finally:
        nics.both("tc qdisc del dev {nic} root")


@contextlib.contextmanager
def dropping(nics, side, chunk):
    """Has a side's kernel lose each packet that begins with this chunk. Yields what counts them."""
    rules = f"table ip lost {{ chain out {{ type filter hook output priority 0; ip protocol 132 @th,96,8 {chunk} counter drop; }}; }}"
    nics.bed.run(side, f"nft '{rules}'").checked()
    try:
        yield lambda: int(re.search(r"packets (\d+)", nics.bed.run(side, "nft list table ip lost").checked())[1])
    finally:
        nics.bed.run(side, "nft delete table ip lost").checked()


@case("a COOKIE ACK that is lost costs no association of SCTP", kinds=("virtio",))
def _(nics):
    # The second time the server does not learn that the client has given up its first try.
    for aborts_are_lost in (False, True):
        with contextlib.ExitStack() as undone:
            lost_aborts = undone.enter_context(dropping(nics, "east", ABORT)) if aborts_are_lost else None
            serving = nics.serve("rping -s", f"--sctp -a {WEST}")
            with dropping(nics, "west", COOKIE_ACK) as lost_acks:
                pinging = nics.bed.spawn("east", f"exec {nics.ctl} rping -c --sctp -a {WEST} -C 5 -V -S 3000", 60)
                nics.wait(lambda: lost_acks() or not pinging.running(), "a COOKIE ACK is lost")
            pinged = pinging.wait()
            served = serving.wait() if pinged.code == 0 else nics.end(serving)
            expect(pinged.code == 0 and served.code == 0, f"rping ends with {pinged.code} and {served.code}:",
                   pinged.output, served.output)
            expect(not aborts_are_lost or lost_aborts(), "nothing was given up")


@case("own tests over SCTP: a loss on one queue pair holds no other", kinds=("virtio",))
def _(nics):
    program = of_crate("rnic-verbs")["sctp"]
    # The host that builds them may have no SCTP, and so they are ignored there.
    without = "--skip a_kernel_without_sctp_is_told_of"
    done = nics.bed.guest.run(f"exec {program} --test-threads=1 --include-ignored {without}", timeout=300)
    expect(done.code == 0, f"they end with {done.code}:", done.output)
