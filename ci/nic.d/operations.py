"""Every operation over zero-copy, at MTUs that need one chunk of UMEM, two sizes of it, or several
chunks."""

import contextlib

from nic import EAST, WEST
from nic_cases import EACH, case, expect

# Frames that fill the smallest chunk of each driver just and just not; jumbo frames. igb and virtio
# take 9216 at most.
MTUS = (1280, 1500, 1771, 3000, 9000)


def set_mtu(nics, mtu):
    nics.both(f"ip link set dev {{nic}} mtu {mtu}")


def post_old_buffers(nics):
    """Lets virtio_net post buffers of a page each in all its receive rings, without a program: it
    does so once each queue has seen long frames. Under a program it drops what begins in such a
    buffer and does not end there."""
    for side, peer in ((nics.east, WEST), (nics.west, EAST)):
        side(f"{LONG_DATAGRAMS} {peer}").checked()
    nics.both("ethtool -G {nic} rx 128 && ethtool -G {nic} rx 256")


# Of many ports, so that RSS brings them to all queues.
LONG_DATAGRAMS = """python3 -c '
import socket, sys
for _ in range(64):
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        for _ in range(30):
            sender.sendto(bytes(8900), (sys.argv[1], 9))
'"""


def expect_whole_frames(report, mtu):
    """Full frames arrive, one message at a time. A frame that the NIC cannot take shows as a
    smaller path MTU; where many are in flight, so does a queue that has overflowed again and
    again."""
    tcp = [worker["tcp"] for worker in report["workers"]]
    reductions = sum(each["mtu_reductions"] for each in tcp)
    expect(reductions == 0, f"frames of MTU {mtu} are lost: the path MTU was reduced {reductions} times", tcp)


def every_operation(nics, mtu):
    for test, options in (
        # First those that show whether the first long frames arrive.
        ("send-lat", f"-s {2 * mtu + 1} -n 20"), ("read-lat", f"-s {2 * mtu + 1} -n 20"), ("write-lat", "-s 1 -n 20"),
        ("write-bw", "-s 20000 -n 40"), ("send-bw", "-s 20000 -n 40"), ("read-bw", "-s 20000 -n 40 -t 4"),
        ("atomic-bw", "-n 40"),
    ):
        verify = "" if test.startswith("atomic") else "--verify"
        report = nics.perf(test, f"{verify} --counters {options}")
        if test.endswith("lat"):
            expect_whole_frames(report, mtu)
    serving = nics.serve(f"rping -s -a {WEST}", "-C 10 -S 5000")
    done = nics.east(f"{nics.ctl} rping -c -a {WEST} -C 10 -V -S 5000 --netdev nic0")
    served = nics.end(serving)
    expect(done.code == 0, f"rping ends with {done.code}:", done.output, served.output)
    return report["test_info"]["device"]


def operations_case(mtu):
    @case(f"every operation, MTU {mtu}", kinds=EACH if mtu == 1500 else ("igb", "virtio"), long=mtu in (1280, 3000))
    def _(nics):
        set_mtu(nics, mtu)
        if nics.kind == "virtio" and mtu == 9000:
            post_old_buffers(nics)
        try:
            device = every_operation(nics, mtu)
        finally:
            set_mtu(nics, 1500)
        copies = nics.kind not in ("igb", "virtio") or mtu > 3030
        expect((device.split(", ")[1] == "zero-copy") != copies, "it was copied, or not, against what the NIC can:", device)


for each in MTUS:
    operations_case(each)


@case("doctor tells what is opened", kinds=EACH)
def _(nics):
    for mtu in (1500, 9000):
        set_mtu(nics, mtu)
        try:
            facts = nics.doctor()
            device = nics.perf("write-lat", "-n 5")["test_info"]["device"]
        finally:
            set_mtu(nics, 1500)
        trial = facts.get("trial")
        expect(trial, "doctor makes no trial:", facts)
        expect(device.startswith(trial["found"]), f"MTU {mtu}: doctor and the port differ:", trial["found"], device)
        for fact in facts.values():
            expect(fact["verdict"] != "fail", f"MTU {mtu}: doctor finds a failure:", fact)
        said_native = facts["native XDP"]["found"].startswith("yes")
        expect(said_native == ("XDP native" in device), f"MTU {mtu}: native XDP is said and not so, or so and not said:",
               facts["native XDP"], device)
        said_zero_copy = facts["zero-copy"]["found"].startswith("yes")
        opened = device.split(", ")[1] == "zero-copy"
        expect(said_zero_copy == opened, f"MTU {mtu}: zero-copy is said and not so, or so and not said:", facts["zero-copy"], device)
        expect(opened or "copy (" in device, f"MTU {mtu}: why frames are copied is not said:", device)


@contextlib.contextmanager
def vlan(nics):
    """A VLAN on both NICs; yields the address of the west there. igb removes tags before the XDP
    program sees the frame."""
    nics.both("ip link add link {nic} name {nic}.7 type vlan id 7 && ip link set dev {nic}.7 up")
    try:
        nics.east("ip address add 10.80.0.1/24 dev nic0.7").checked()
        nics.west("ip address add 10.80.0.2/24 dev nic1.7").checked()
        yield "10.80.0.2"
    finally:
        nics.both("ip link delete {nic}.7; ethtool -K {nic} rxvlan on 2>/dev/null || true")


def each_rxvlan(nics):
    """Sets the offload that removes tags ahead of the XDP program, and yields it. virtio-net has
    none, and leaves the tags."""
    for state in ("on", "off") if nics.kind == "igb" else ():
        nics.both("ethtool -K {nic} rxvlan " + state)
        yield state
    if nics.kind != "igb":
        yield "absent"


@case("VLAN")
def _(nics):
    with vlan(nics) as west:
        for rxvlan in each_rxvlan(nics):
            offloads = nics.doctor()["offloads"]
            expect(offloads["verdict"] == "ok", f"rxvlan {rxvlan}: doctor finds fault:", offloads)
            nics.perf("write-bw", "--verify -s 20000 -n 40", host=west)


@case("VLAN tags that are removed from now on, and an address in two VLANs", kinds=("igb",))
def _(nics):
    with vlan(nics) as west:
        nics.both("ethtool -K {nic} rxvlan off")
        serving = nics.serve(f"rping -s -a {west} -C 1")
        try:
            nics.both("ethtool -K {nic} rxvlan on")
            done = nics.east(f"{nics.ctl} rping -c -a {west} -C 1 -V --netdev nic0")
        finally:
            served = nics.end(serving)
        expect(done.code == 0, "no client is served once tags are removed:", done.output, served.output)

        nics.west("ip link add link nic1 name nic1.8 type vlan id 8 && ip link set dev nic1.8 up").checked()
        try:
            nics.west(f"ip address add {west}/24 dev nic1.8").checked()
            done = nics.west(f"{nics.ctl} rping -s -a {west} -C 1 --netdev nic1")
        finally:
            nics.west("ip link delete nic1.8").checked()
        told = "is in the VLANs 7 and 8 of nic1" in done.output
        expect(done.code != 0 and told, "an address in two VLANs is not refused:", done.output)


@case("several workers and queues")
def _(nics):
    report = nics.perf("write-bw", "--thread --workers 2 -q 8 -s 4096 -n 200 --counters", "--thread --workers 2 -q 8")
    queues = len([queue for worker in report["workers"] for queue in worker["queues"]])
    expect(len(report["workers"]) == 2 and queues >= 2, "there are not two workers:", report["workers"])
    for worker in report["workers"]:
        engine = worker["engine"]
        expect(engine["handed_over"] == 0, "the hash was not predicted: frames were handed over", engine)
        expect(engine["frames_received"] > 0, "a worker got no frames", engine)


@case("busy polling, or why not", kinds=EACH)
def _(nics):
    report = nics.perf("write-bw", "--busy-poll --verify -s 4096 -n 100", "--busy-poll")
    device = report["test_info"]["device"]
    expect("busy poll" in device, "the report does not tell of busy polling:", device)
