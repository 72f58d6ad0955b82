"""rdma-core's and perftest's programs at both ends: over rnic here, over siw in the machine."""

import json
import subprocess

import bench as tools
import siw
from bench import CTL, OURS, SIW, case, expect

RNIC = CTL.parent / "rnic"
# perftest's server listens twice. A client that comes too early the second time is refused, and
# dies in its attempt to try again. Over rnic the server makes up for it; siw's does not, and the
# machine is slow: such a client begins anew.
TOO_EARLY, ATTEMPTS = "RDMA_CM_EVENT_REJECTED; error: -111", 12
# siw looks whether the peer has closed each time it has sent a segment, and then takes the message
# for failed (siw_qp_sq_proc_tx). The last message of perftest's client is answered by a server that
# closes at once: ours may have done so before the emulated machine gets there.
SENT_YET_FAILED = "Bad wc status 2\n Unable to write to socket/rdma_cm"


def steered(bench):
    """Returns the addresses and TCP ports that a program of ours has."""
    command = bench.lan.inside(CTL, "-j", "steering", "--netdev", bench.interface)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    return json.loads(done.stdout)["steered"] if done.returncode == 0 else []


def listens(bench, port):
    """Returns whether a program of ours listens."""
    if tools.VIA == "kernel":
        return f":{port:04X} 00000000:0000 0A" in siw.call(*bench.lan.inside("cat", "/proc/net/tcp"))
    return any(entry.endswith(f":{port}") for entry in steered(bench))


def ours(bench, command):
    words = command.format(port=bench.port, host=SIW, own=OURS).split()
    return bench.ours(RNIC, "run", "--via", tools.VIA, "--netdev", bench.interface, *words)


def expect_success(code, ours, done, says):
    """Both ended well, and the client said what it must."""
    seen = (f"-- ours ended with {code}:", ours.said(), f"-- siw's ended with {done.code}:", done.output)
    expect(code == 0 and done.code == 0, "one of them failed", *seen)
    for said, what in zip((ours.said(), done.output), says):
        expect(what in said, f"'{what}' is not said", *seen)


def both(name, server, client, says=("", ""), we_connect=True, server_first=False):
    """A case for each role: `says` is what the server and the client must print. A server that
    speaks first must wait for its client's first FPDU (RFC 5044 section 7.1), which comes by itself
    in the peer-to-peer start-up alone: siw has to be told to ask for it."""

    @case(f"{name}: siw connects")
    def _(bench):
        for attempt in range(ATTEMPTS):
            served = ours(bench, server)
            served.until(lambda: listens(bench, bench.port), "listens")
            with bench.switches(**({"peer_to_peer": "Y"} if server_first else {})):
                theirs = bench.siw_starts(client)
                code, done = served.end(), theirs.wait()
            if attempt + 1 < ATTEMPTS and code == 0 and SENT_YET_FAILED in done.output:
                bench.port += 1000
                continue
            expect_success(code, served, done, says)
            return

    if not we_connect:
        return

    @case(f"{name}: we connect")
    def _(bench):
        for attempt in range(ATTEMPTS):
            theirs = bench.siw_serves(server.replace("{own}", SIW))
            started = ours(bench, client)
            if attempt + 1 < ATTEMPTS and started.end() != 0 and TOO_EARLY in started.said():
                theirs.kill()
                # The kernel keeps the port for a while.
                bench.port += 1000
                continue
            expect_success(started.end(), started, theirs.wait(), says[::-1])
            return


both("Debian's rping", "rping -s -v -V -C 10 -p {port} -a {own}", "rping -c -v -V -C 10 -p {port} -a {host}",
     ("server ping data: rdma-ping-9", "ping data: rdma-ping-9"))
both("ucmatose", "ucmatose -b {own} -p {port} -c 4", "ucmatose -s {host} -p {port} -c 4", ("return status 0", "return status 0"),
     server_first=True)
both("rdma_client", "rdma_server -s {own} -p {port}", "rdma_client -s {host} -p {port}", ("rdma_server: end 0", "rdma_client: end 0"))
both("rstream", "rstream -b {own} -p {port} -S 4096 -C 10 -I 20 -T v", "rstream -s {host} -p {port} -S 4096 -C 10 -I 20 -T v")
for _operation in ("write", "read", "send"):
    for _what, _said in (("bw", "BW average"), ("lat", "t_avg")):
        # siw has no ibv_wr_*.
        _line = f"ib_{_operation}_{_what} -R -F -n 200 -s 4096 -p {{port}} --use_old_post_send"
        # The others begin too early each time.
        both(f"ib_{_operation}_{_what}", _line, f"{_line} {{host}}", ("", _said), we_connect=(_operation, _what) == ("write", "bw"),
             server_first=(_operation, _what) == ("write", "lat"))
