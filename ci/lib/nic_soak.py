"""Mixed traffic between two emulated NICs for some minutes: `ci/nic soak`.

A step is one program of rnic with verification, at an MTU, and often the kernel's TCP beside it. A
seed decides all of it.
"""

import random
import time

import machine
import nic
import nic_cases
from nic_cases import ROOT, expect

# igb has XDP in its driver up to 3046 octets, and generic XDP beyond.
MTUS = (1280, 1500, 1771, 3000, 4000, 9000)
BANDWIDTH = ("write-bw", "send-bw", "read-bw")
LATENCY = ("write-lat", "send-lat", "read-lat")
ATOMIC = ("atomic-bw", "atomic-lat")
# Octets of a bandwidth test: an emulated NIC moves some megabytes a second.
OCTETS = 6_000_000
# Round trips of a bandwidth test: on a busy host each takes up to 50 ms.
ROUND_TRIPS = 400
# Octets of memory of a bandwidth test on a side: a page takes the guest up to 0.2 ms, and a
# connection is waited for 10 s.
MEMORY = 16_000_000
PATIENCE = 300


def some_size(chance):
    """A message size, as often around 10 as around 100,000."""
    return int(10 ** chance.uniform(0, 5.5))


def some_program(chance):
    """The server's and the client's command lines, behind `rnic-ctl`. The client's ends ahead of
    the server's address."""
    kind = chance.choice(("bandwidth", "bandwidth", "bandwidth", "latency", "atomic", "rping"))
    threads = chance.choice(("", "--thread"))
    if kind == "rping":
        options = f"-C {chance.randint(1, 40)} -S {min(max(some_size(chance), 26), 60_000)}"
        return f"rping -s {threads} {options}", f"rping -c {threads} -V {options} -a"
    size = some_size(chance)
    if kind == "bandwidth":
        test = chance.choice(BANDWIDTH)
        pairs = chance.choice((1, 1, 2, 8))
        depth = min(chance.choice((1, 16, 128)), max(1, MEMORY // size // pairs))
        messages = max(5, min(OCTETS // size, 2000, ROUND_TRIPS * depth))
        options = f"--verify -s {size} -n {messages} -q {pairs} -t {depth}"
    elif kind == "latency":
        test = chance.choice(LATENCY)
        options = f"--verify -s {size} -n {max(5, min(OCTETS // 10 // size, 200))}"
    else:
        test = chance.choice(ATOMIC)
        options = f"-n {chance.randint(10, 500)}"
    return f"perf {test} {threads}", f"perf {test} {threads} {options}"


def run_programs(nics, server, client, beside):
    """Runs a server and its client, and the kernel's TCP `beside` them; all must end well."""
    kernel, done = [], None
    serving = nics.serve(server, timeout=PATIENCE)
    try:
        if beside:
            talk = f"{ROOT}/ci/nic.d/kernel-tcp"
            kernel.append(nics.bed.spawn("west", f"{talk} serve", PATIENCE))
            nics.wait(lambda: "listening" in kernel[0].output() or not kernel[0].running(), "the kernel's server listens", 60)
            kernel.append(nics.bed.spawn("east", f"{talk} {nic.WEST}", PATIENCE))
        done = nics.east(f"{nics.ctl} {client} --netdev nic0 {nic.WEST}" if client.startswith("perf") else
                         f"{nics.ctl} {client} {nic.WEST} --netdev nic0", PATIENCE)
    finally:
        # A server that has lost its client would wait for ever.
        served = nics.end(serving) if client.startswith("rping") or not done or done.code else serving.wait()
    expect(done.code == 0, f"the client ends with {done.code}:", done.output, served.output)
    expect(client.startswith("rping") or served.code == 0, f"the server ends with {served.code}:", served.output)
    for job in kernel:
        result = job.wait()
        expect(result.code == 0, f"the kernel's TCP beside it ends with {result.code}:", result.output)


def counters(bed):
    """The counters of both NICs, as the kernel and their driver count; those that are 0 are left
    out."""
    found = {}
    for side, (interface, _) in nic.SIDES.items():
        script = f"cd /sys/class/net/{interface}/statistics; grep . *; ethtool -S {interface}"
        for line in bed.run(side, script).output.splitlines():
            name, _, value = line.strip().rpartition(":")
            if value.strip().isdigit() and int(value):
                found[f"{side} {name.strip()}"] = int(value)
    return found


def soak(kind, minutes, seed):
    """Runs step after step until the time is over or one fails. Returns whether none failed."""
    print(f"{kind}: {minutes} minutes of mixed traffic, seed {seed}", flush=True)
    chance = random.Random(seed)
    steps, failure, mtu, end = 0, None, 1500, time.monotonic() + 60 * minutes
    with nic.Bed(kind) as bed:
        nics = nic_cases.Nics(bed)
        before = counters(bed)
        while not failure and time.monotonic() < end:
            steps += 1
            # All choices of a step are made here, so that they depend on the seed alone.
            wanted = chance.choice(MTUS) if chance.random() < 0.2 else mtu
            (server, client), beside = some_program(chance), chance.random() < 0.5
            print(f"{kind} {steps}: MTU {wanted}: {client}{' beside the kernel' if beside else ''}", flush=True)
            try:
                if wanted != mtu:
                    nics.both(f"ip link set dev {{nic}} mtu {wanted}")
                    mtu = wanted
                nics.wait_for_carrier()
                run_programs(nics, server, client, beside)
                nic_cases.expect_no_complaints(bed)
            except (nic_cases.Failed, machine.GuestError) as error:
                failure = error
        try:
            after = counters(bed)
        except machine.GuestError:
            after = {}
    print(f"{kind}: counters of the NICs before and after:")
    for name in sorted(before | after):
        print(f"    {name}: {before.get(name, 0)} {after.get(name, 0)}")
    if failure:
        print(f"{kind}: FAILED at step {steps}, MTU {mtu}: server `rnic-ctl {server}`, client `rnic-ctl {client}`"
              f"{', beside the kernel' if beside else ''}\n{failure}")
        print(f"all steps again: ci/nic soak {minutes} --kind {kind} --seed {seed}")
    else:
        print(f"{kind}: {steps} steps in {minutes} minutes without an error, seed {seed}", flush=True)
    return not failure
