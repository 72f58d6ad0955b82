"""What rnic does must not harm what the kernel does with the same NIC."""

from nic import EAST, WEST
from nic_cases import EACH, ROOT, case, expect

TALK = ROOT / "ci/nic.d/kernel-tcp"


def kernel_talks(nics, when):
    """The kernel's TCP moves 300,000 octets each way through the NICs, and its ping a full
    frame."""
    # Workers that poll beside it leave it little of a busy machine's processors.
    serving = nics.bed.spawn("west", f"{TALK} serve", 150)
    nics.wait(lambda: "listening" in serving.output() or not serving.running(), "the kernel's server listens", 60)
    client = nics.east(f"{TALK} {WEST}", 130)
    served = serving.wait()
    expect(client.code == 0 and served.code == 0, f"the kernel's TCP fails {when}:", client.output, served.output)
    ping = nics.east(f"ping -q -c 3 -W 2 -s 1400 {WEST}")
    expect("3 packets received" in ping.output, f"the kernel's ping of 1400 octets fails {when}:", ping.output)


@case("the kernel's TCP and ping beside rnic", kinds=EACH)
def _(nics):
    servers = []
    try:
        for side, address in (("west", WEST), ("east", EAST)):
            servers.append(nics.serve(f"rping -s -a {address}", side=side))
        nics.wait_for_carrier()
        kernel_talks(nics, "while rnic has the NICs")
    finally:
        for each in servers:
            nics.end(each)
    nics.wait_for_carrier()
    kernel_talks(nics, "behind rnic")
