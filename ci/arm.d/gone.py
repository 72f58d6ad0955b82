"""An end is killed, or the way between them is cut: the other end learns of it, and both can begin
anew."""

from arm import case
from bench import expect
from operations import both_ways, perf, serve

AGAIN = "--verify -s 4096 -n 40"


def traffic(bed, server, client, test):
    """A server and a client that verify each message until they are ended; returns both when octets
    flow."""
    serving = serve(server, f"perf {test}")
    command = f"{client.ctl} perf {test} --netdev {client.interface} --verify -s 4096 -D 600 {server.address}"
    # The table's head is printed behind the connection's exchange.
    return serving, client.start(command, 300).ready("#bytes")


def expect_learns(end, program, what):
    """rnic-ctl counts a side as gone that has been silent for 30 s."""
    code = program.end(300)
    expect(code == 1, f"{what}: the {end} end ends with {code}:", program.said())


@case("an end is killed with -9, both ways round")
def _(bed):
    for server, client in both_ways(bed):
        for killed in ("server", "client"):
            serving, measuring = traffic(bed, server, client, "write-bw")
            victim, other = (serving, measuring) if killed == "server" else (measuring, serving)
            victim.kill()
            expect_learns(client if killed == "server" else server, other, f"the {killed} is killed")
            victim.end(60)
            perf(server, client, "write-bw", AGAIN)


@case("the way between both is cut under traffic, both ways round")
def _(bed):
    for server, client in both_ways(bed):
        serving, measuring = traffic(bed, server, client, "send-bw")
        with bed.cut():
            expect_learns(client, measuring, "nothing passes")
            expect_learns(server, serving, "nothing passes")
        perf(server, client, "send-bw", AGAIN)


@case("the way between both is cut for two seconds")
def _(bed):
    for server, client in both_ways(bed):
        serving = serve(server, "perf send-bw")
        measuring = client.start(f"{client.ctl} perf send-bw --netdev {client.interface} --verify -s 4096 -D 20 {server.address}")
        measuring.ready("#bytes")
        with bed.cut():
            bed.guest.run("sleep 2").checked()
        for program in (measuring, serving):
            code = program.end(300)
            expect(code == 0, f"{program} ends with {code}:", program.said())
