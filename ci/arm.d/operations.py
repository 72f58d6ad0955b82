"""Every operation, both ways round, with data that are verified; and who has seen the frames."""

import json

from arm import case
from bench import expect

TESTS = (
    ("write-bw", "--verify -s 20000 -n 40"), ("read-bw", "--verify -s 20000 -n 40"), ("send-bw", "--verify -s 20000 -n 40"),
    ("write-lat", "--verify -s 64 -n 40"), ("read-lat", "--verify -s 3001 -n 40"), ("send-lat", "--verify -s 64 -n 40"),
    ("atomic-bw", "-n 40"), ("atomic-lat", "-n 40"),
)


def both_ways(bed):
    """Each end as the server, with the other one as its client."""
    return ((bed.host, bed.arm), (bed.arm, bed.host))


def serve(end, what, options=""):
    """rnic-ctl as a server, listening."""
    return end.start(f"{end.ctl} {what} --netdev {end.interface} {options}").ready()


def perf(server, client, test, options="", server_options=""):
    """A measurement; returns the client's report."""
    serving = serve(server, f"perf {test}", server_options)
    measuring = client.start(f"{client.ctl} -j perf {test} --netdev {client.interface} {options} {server.address}")
    code = measuring.end(300)
    said = measuring.said()
    expect(code == 0, f"perf {test} {options}, the client is {client}: it ends with {code}:", said, serving.said())
    code = serving.end(60)
    expect(code == 0, f"perf {test} {options}, the server is {server}: it ends with {code}:", serving.said())
    return json.loads(said[said.index("{"):])


@case("doctor finds the guest fit, and tells what is opened")
def _(bed):
    arm = bed.arm
    said = arm.run(f"{arm.ctl} -j doctor --netdev {arm.interface}")
    facts = {fact["name"]: fact for fact in json.loads(said)["device"]}
    for fact in facts.values():
        expect(fact["verdict"] != "fail", "doctor finds a failure:", fact)
    device = perf(bed.host, arm, "write-lat", "-n 5")["test_info"]["device"]
    expect(device.startswith(facts["trial"]["found"]), "doctor and the port differ:", facts["trial"]["found"], device)
    expect("XDP native" in device, "the driver does not run the XDP program:", device)


@case("every operation, both ways round")
def _(bed):
    for server, client in both_ways(bed):
        for test, options in TESTS:
            perf(server, client, test, options)


@case("a worker of its own, eight queue pairs, jumbo frames")
def _(bed):
    bed.set_mtu(9000)
    try:
        for server, client in both_ways(bed):
            perf(server, client, "write-bw", "--verify --thread -q 8 -s 65536 -n 20", "--thread -q 8")
            perf(server, client, "send-bw", "--verify --thread -q 8 -s 65536 -n 20", "--thread -q 8")
    finally:
        bed.set_mtu(1500)


def segments(end):
    """What the kernel's TCP of an end has received and sent so far."""
    lines = [line.split() for line in end.run("cat /proc/net/snmp").splitlines() if line.startswith("Tcp:")]
    counters = dict(zip(*lines))
    return int(counters["InSegs"]) + int(counters["OutSegs"])


@case("the kernels see none of the frames")
def _(bed):
    for server, client in both_ways(bed):
        before = [segments(end) for end in (server, client)]
        serving = serve(server, "perf write-bw")
        client.start(f"{client.ctl} perf write-bw --netdev {client.interface} -s 4096 -D 600 {server.address}").ready("#bytes")
        for end in (server, client):
            expect_steered(serving, end)
        after = [segments(end) for end in (server, client)]
        expect(before == after, "the kernels' TCP has seen segments of ours:", before, after)
        bed.running.close()


def expect_steered(serving, end):
    """The XDP program of an end brings frames to rnic, more and more of them."""

    def redirected():
        said = end.run(f"{end.ctl} -j steering --netdev {end.interface}")
        return json.loads(said)["frames"]["redirected"]

    before = redirected()
    serving.until(lambda: redirected() > before, f"gets or sends more frames ({end})")


def rping(server, client, options):
    serving = serve(server, f"rping -s -a {server.address}", options)
    client.run(f"{client.ctl} rping -c -a {server.address} --netdev {client.interface} -V {options}")
    code = serving.end(60)
    expect(code == 0, f"the server is {server}: rping ends with {code}:", serving.said())


@case("rnic-ctl rping, both ways round")
def _(bed):
    for server, client in both_ways(bed):
        for size in (64, 26, 1461, 65535):
            rping(server, client, f"-C 10 -S {size}")
