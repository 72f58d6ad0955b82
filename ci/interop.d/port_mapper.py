"""iwpmd of rdma-core in the machine: the kernel's iWARP asks by it where we listen, and it tells us
where siw does."""

import contextlib
import sys

from bench import OURS, SIW, case, expect
from unmodified import listens, ours, steered

PORT_MAPPER = 3935
REQUEST, ACCEPT, ACKNOWLEDGMENT, REJECT = range(4)


@contextlib.contextmanager
def iwpmd(bench):
    """Runs it in the machine, where the kernel finds it by itself."""
    bench.vm.run("iwpmd; for i in $(seq 50); do pidof iwpmd && break; sleep 0.1; done").checked()
    try:
        yield
    finally:
        bench.vm.run("kill $(pidof iwpmd)")


@contextlib.contextmanager
def tcp_socket(bench):
    """A TCP socket of the kernel listens at the case's number. Yields the program, which says who
    connects."""
    script = (f"import socket; s = socket.create_server(('{OURS}', {bench.port})); print('listening', flush=True)\n"
              "while True: print('connected:', s.accept()[1], flush=True)")
    program = bench.ours(sys.executable, "-c", script)
    try:
        yield program.ready()
    finally:
        program.stop()


def messages(capture):
    """Returns the port mappers' messages on the wire: the sender, the kind and the acceptor's port."""
    found = []
    for layers in capture.packets(f"udp.port == {PORT_MAPPER}"):
        octets = bytes.fromhex(layers["udp"]["udp.payload"].replace(":", ""))
        found.append((layers["ip"]["ip.src"], octets[0] >> 4 & 3, int.from_bytes(octets[4:6], "big")))
    return found


@case("port mapper: siw connects to a number that TCP has too", frames_only=True)
def _(bench):
    with iwpmd(bench), tcp_socket(bench) as tcp, bench.capture() as capture:
        server = ours(bench, "rping -s -v -V -C 3 -p {port} -a {own}")
        server.until(lambda: steered(bench), "listens")
        client = bench.siw_runs("rping -c -v -V -C 3 -p {port} -a {host}")
        expect(server.end() == 0 and client.code == 0, "rping failed", server.said(), client.output)
        expect("connected" not in tcp.said(), "the TCP socket got a connection", tcp.said())
    seen = messages(capture)
    accepts = [port for sender, kind, port in seen if (sender, kind) == (OURS, ACCEPT)]
    expect((SIW, REQUEST, bench.port) in seen, "the machine did not ask", seen)
    expect(accepts and bench.port not in accepts, "we did not tell another port", seen)
    expect((SIW, ACKNOWLEDGMENT, accepts[0]) in seen, "iwpmd did not acknowledge", seen)


@case("port mapper: siw connects to a number that RDMA has", frames_only=True)
def _(bench):
    with iwpmd(bench), bench.capture() as capture:
        server = ours(bench, "rping -s -v -V -C 3 -p {port} -a {own}")
        server.until(lambda: listens(bench, bench.port), "listens")
        client = bench.siw_runs("rping -c -v -V -C 3 -p {port} -a {host}")
        expect(server.end() == 0 and client.code == 0, "rping failed", server.said(), client.output)
    seen = messages(capture)
    expect((OURS, ACCEPT, bench.port) in seen, "we did not tell the port", seen)


@case("port mapper: we connect")
def _(bench):
    with iwpmd(bench), bench.capture() as capture:
        server = bench.siw_serves("rping -s -v -V -C 3 -p {port}")
        client = ours(bench, "rping -c -v -V -C 3 -p {port} -a {host}")
        done = server.wait() if client.end() == 0 else None
        expect(done and done.code == 0, "rping failed", client.said())
    seen = messages(capture)
    expect(seen == [(OURS, REQUEST, bench.port), (SIW, ACCEPT, bench.port), (OURS, ACKNOWLEDGMENT, bench.port)],
           "not a Request, an Accept and an Acknowledgment", seen)


@case("port mapper: iwpmd knows no listener")
def _(bench):
    with iwpmd(bench), bench.capture() as capture:
        client = ours(bench, "rping -c -v -V -C 3 -p {port} -a {host}")
        expect(client.end() != 0, "rping connected", client.said())
    seen = messages(capture)
    expect(seen == [(OURS, REQUEST, bench.port), (SIW, REJECT, bench.port)], "not a Request and a Reject", seen)
