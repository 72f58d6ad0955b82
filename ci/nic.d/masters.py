"""Devices on others: their frames arrive on the NIC below, so rnic works in the kernel's stack, and
says so."""

import contextlib

from nic import EAST
from nic_cases import case, expect


@contextlib.contextmanager
def bond(nics):
    """A bond over the east's NIC, which has its address."""
    try:
        nics.east(f"""set -e
            ip link add bond0 type bond mode active-backup miimon 100
            ip address flush dev nic0
            ip link set dev nic0 down
            ip link set dev nic0 master bond0
            ip link set dev bond0 up
            ip address add {EAST}/24 dev bond0""").checked()
        nics.wait_for_carrier()
        yield
    finally:
        # The NIC is down when the bond has let it go.
        nics.east(f"""ip link delete dev bond0
            ethtool -K nic0 gro on
            ethtool -K nic0 rx-gro-hw on 2>/dev/null # virtio_net has it
            ip link set dev nic0 up && ip address replace {EAST}/24 dev nic0""").checked()
        nics.wait_for_carrier()


@case("a bond over the NIC")
def _(nics):
    because = "it is the master of nic0"
    with bond(nics):
        facts = nics.doctor("bond0")
        expect(because in facts["native XDP"]["found"], "doctor does not say why it is not native:", facts)
        offloads = facts["offloads"]
        expect(offloads["verdict"] == "fail" and "ethtool -K nic0 gro off" in offloads["remedy"],
               "doctor does not tell what is lost, or its remedy:", facts)
        nics.east(offloads["remedy"]).checked()
        facts = nics.doctor("bond0")
        failed = [fact for fact in facts.values() if fact["verdict"] == "fail"]
        expect(not failed and "trial" in facts, "doctor finds failures that are none:", facts)
        refused = nics.east(f"{nics.ctl} perf read-bw --xdp-mode native --netdev bond0")
        expect(refused.code != 0 and because in refused.output, "native XDP is not refused:", refused.output)
        part = nics.doctor("nic0")["device"]
        expect("a part of bond0" in part["found"], "doctor does not say that the NIC is a part of another:", part)
        # Reads arrive in full frames, Writes leave in them.
        for test in ("write-bw", "read-bw"):
            device = nics.perf(test, "--verify -s 20000 -n 40", netdev="bond0")["test_info"]["device"]
            expect(device.startswith(f"bond0: XDP generic ({because}"), "the report does not say what it is:", device)
            expect("lost" not in device, "the report tells of losses:", device)


@case("a VLAN on the NIC, opened itself")
def _(nics):
    try:
        nics.east("""set -e
            ip link add link nic0 name nic0.9 type vlan id 9
            ip link set dev nic0.9 up
            ethtool -K nic0 gro on""").checked()
        offloads = nics.doctor("nic0.9")["offloads"]
        expect(offloads["verdict"] == "fail" and "ethtool -K nic0 gro off" in offloads["remedy"],
               "doctor does not tell what is lost, or its remedy:", offloads)
        nics.east(offloads["remedy"]).checked()
        offloads = nics.doctor("nic0.9")["offloads"]
        expect(offloads["verdict"] == "ok", "doctor finds a loss that is none:", offloads)
    finally:
        nics.east("""ip link delete dev nic0.9
            ethtool -K nic0 gro on
            ethtool -K nic0 rx-gro-hw on 2>/dev/null # virtio_net has it
            true""").checked()
