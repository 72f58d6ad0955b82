"""rnic in a control group that has less than it would like: no hugepages, little processor time."""

import contextlib

from nic import WEST
from nic_cases import case, expect

GROUP = "/tmp/cgroup/limited"


@contextlib.contextmanager
def control_group(nics):
    nics.bed.guest.run(f"""set -e
        mkdir -p /tmp/cgroup
        mount -t cgroup2 cgroup /tmp/cgroup
        echo "+cpu +hugetlb +memory" >/tmp/cgroup/cgroup.subtree_control
        mkdir {GROUP}""").checked()
    try:
        yield
    finally:
        nics.bed.guest.run(f"rmdir {GROUP} && umount /tmp/cgroup").checked()


def limited(nics, limits):
    """Writes from inside the group; returns the report's text."""
    nics.bed.guest.run("\n".join(f"echo {value} >{GROUP}/{file}" for file, value in limits.items())).checked()
    serving = nics.serve("perf write-bw")
    done = nics.east(f"echo $$ >{GROUP}/cgroup.procs && exec {nics.ctl} perf write-bw --netdev nic0 --verify -s 20000 -n 40 {WEST}")
    served = serving.wait() if done.code == 0 else nics.end(serving)
    expect(done.code == 0 and served.code == 0, f"perf in a group with {limits} fails:", done.output, served.output)
    return done.output


@case("control groups without hugepages, memory to spare or processor time")
def _(nics):
    with control_group(nics):
        report = limited(nics, {"hugetlb.2MB.max": "0", "hugetlb.2MB.rsvd.max": "max"})
        expect("on hugepages" not in report, "it has hugepages that its group may not have:", report)
        # None may even be reserved.
        report = limited(nics, {"hugetlb.2MB.rsvd.max": "0"})
        expect("on hugepages" not in report, "it has hugepages that its group may not have:", report)
        others = {"cpu.max": "'20000 100000'", "memory.max": "100M"}
        report = limited(nics, {"hugetlb.2MB.max": "max", "hugetlb.2MB.rsvd.max": "max", **others})
        expect("on hugepages" in report, "it has no hugepages though its group may:", report)
