"""rnicd on arm64: users without any right have ports, for which the virtual NIC sends what XDP
programs redirect to it."""

import contextlib
import dataclasses

from arm import case
from bench import expect
from operations import TESTS, perf

DIRECTORY = "/tmp/sharing"
# rnic-ctl as nobody, with rnicd's socket.
CLIENT = f"{DIRECTORY}/client"


@contextlib.contextmanager
def shared(bed):
    """rnicd shares the guest's NIC; yields the guest as an end whose rnic-ctl runs without rights,
    and rnicd."""
    arm = bed.arm
    options = f"--config {DIRECTORY}/rnicd.toml --socket {DIRECTORY}/socket --state {DIRECTORY}/state --pins {DIRECTORY}/bpf/eth0"
    bed.guest.run(f"""set -e
        mkdir -p {DIRECTORY}/bpf
        mountpoint -q {DIRECTORY}/bpf || mount -t bpf bpf {DIRECTORY}/bpf
        printf 'socket_group = "nogroup"\\n[defaults]\\nlisten = ["1024-65535"]\\nrate = "none"\\npeers = "all"\\n[[device]]\\nname = "eth0"\\n' >{DIRECTORY}/rnicd.toml
        cat >{CLIENT} <<END
#!/bin/sh
ulimit -l 8192
export RNICD_SOCKET={DIRECTORY}/socket
exec setpriv --reuid nobody --regid nogroup --clear-groups --inh-caps=-all --bounding-set=-all {arm.ctl} "\\$@"
END
        chmod 755 {CLIENT}""").checked()
    rnicd = arm.start(f"{arm.built}/rnicd {options}", 600).ready("shares eth0:")
    without_rights = dataclasses.replace(arm, ctl=CLIENT)
    try:
        yield without_rights, rnicd
    finally:
        bed.running.close()
        bed.guest.run(f"{arm.built}/rnicd --unshare {options}").checked()
    left = bed.guest.run("ip -o link show | grep -e 'rnic[0-9]*-' -e xdp").output
    expect(not left, "rnicd leaves this behind:", left)


@case("rnicd: every operation through ports, both ways round")
def _(bed):
    with shared(bed) as (arm, _):
        for server, client in ((bed.host, arm), (arm, bed.host)):
            for test, options in TESTS:
                report = perf(server, client, test, options)
                device = report["test_info"]["device"]
                expect(client is bed.host or "a port of rnicd" in device, "it was no port of rnicd:", device)
