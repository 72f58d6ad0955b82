"""Debian's programs of both architectures over our libraries, over AF_XDP."""

import re

from arm import case
from bench import expect
from operations import both_ways

PORT = 18515


def rnic_run(end, command):
    return f"{end.built}/rnic run --via xdp --netdev {end.interface} {command}"


def steers(end, port):
    """Whether a program of an end listens at a TCP port of rnic's."""
    program = end.start(f"{end.ctl} -j steering --netdev {end.interface}")
    program.end(60)
    return re.search(rf":{port}\b", program.said()) is not None


def both(server, client, of_server, of_client, port, says):
    """Runs a program at both ends."""
    serving = server.start(rnic_run(server, of_server))
    serving.until(lambda: steers(server, port), f"listens at port {port}")
    asking = client.start(rnic_run(client, of_client))
    code = asking.end(300)
    expect(code == 0, f"the client is {client}: {asking} ends with {code}:", asking.said(), serving.said())
    code = serving.end(60)
    expect(code == 0, f"the server is {server}: {serving} ends with {code}:", serving.said(), asking.said())
    expect(re.search(says, asking.said(), re.MULTILINE), f"{asking} does not say '{says}':", asking.said())


def rdma_core(size):
    @case(f"rdma-core's rping, both ways round, {size} octets")
    def _(bed):
        for server, client in both_ways(bed):
            options = f"-v -V -C 10 -S {size}"
            both(server, client, f"rping -s {options} -a {server.address}", f"rping -c {options} -a {server.address}", 7174, "ping data: rdma-ping-9")


for each in (100, 65000):
    rdma_core(each)


def perftest(program, options):
    @case(f"perftest's {program}, both ways round")
    def _(bed):
        for server, client in both_ways(bed):
            command = f"{program} -R -F {options}"
            both(server, client, command, f"{command} {server.address}", PORT, "BW average" if program.endswith("bw") else "t_avg")


for each in ("write", "read", "send"):
    perftest(f"ib_{each}_bw", "-s 65536 -n 100")
perftest("ib_write_lat", "-s 64 -n 200")
perftest("ib_atomic_bw", "-A FETCH_AND_ADD -n 200")
