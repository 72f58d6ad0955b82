"""rnicd shares the NICs: users without any right get ports, for which the drivers must send what
XDP programs redirect to them."""

import contextlib
import json

import nic
from changes import traffic, unbind
from kernel import kernel_talks
from nic_cases import CTL, EACH, RNICD, Nics, case, expect
from operations import each_rxvlan, set_mtu, vlan

# Of the guest, for the sockets, configurations, records and pins of both sides.
DIRECTORY = "/tmp/sharing"
# Runs rnic-ctl as nobody, with rnicd of the side on which it is called. The directories above the
# program may be closed to nobody.
CLIENT = f"{DIRECTORY}/client"
PREPARE = f"""set -e
    [ ! -e {CLIENT} ] || exit 0
    mkdir -p {DIRECTORY}/bpf
    mount -t bpf bpf {DIRECTORY}/bpf
    touch {DIRECTORY}/rnic-ctl
    mount --bind {CTL} {DIRECTORY}/rnic-ctl
    cat >{CLIENT} <<END
#!/bin/sh
ulimit -l 8192
export RNICD_SOCKET={DIRECTORY}/\\$(ip netns identify)/socket
exec setpriv --reuid nobody --regid nogroup --clear-groups --inh-caps=-all --bounding-set=-all {DIRECTORY}/rnic-ctl "\\$@"
END
    chmod 755 {CLIENT}
"""


class Sharing(Nics):
    """Both sides, each with an rnicd; rnic-ctl is started as nobody."""

    def __init__(self, bed, rules=""):
        super().__init__(bed)
        self.ctl = CLIENT
        self._rules = rules
        self._rnicd = {}

    def options(self, side):
        place = f"{DIRECTORY}/{side}"
        return f"--config {place}/rnicd.toml --socket {place}/socket --state {place}/state --pins {DIRECTORY}/bpf/{side}"

    def start(self, side):
        """Starts rnicd, and waits until it shares the NIC."""
        interface, _ = nic.SIDES[side]
        self.bed.run(side, f"""mkdir -p {DIRECTORY}/{side}
            printf 'socket_group = "nogroup"\\n[defaults]\\nlisten = ["1024-65535"]\\nrate = "none"\\npeers = "all"\\n[[device]]\\nname = "{interface}"\\n%b' '{self._rules.format(nic=interface)}' >{DIRECTORY}/{side}/rnicd.toml""").checked()
        self._launch(side)

    def _launch(self, side):
        self._rnicd[side] = self.bed.spawn(side, f"exec {RNICD} {self.options(side)}", 600)
        self.expect_shared(side)

    def expect_shared(self, side, times=1):
        """Waits until rnicd has begun so many times to share the NIC."""
        job, (interface, _) = self._rnicd[side], nic.SIDES[side]

        def is_so():
            return job.output().count(f" shares {interface}:") == times or not job.running()

        self.wait(is_so, f"rnicd has begun {times} times to share {interface}", 40)
        expect(job.running(), "rnicd ended early:", job.wait().output if not job.running() else "")

    def stop(self, side):
        """Ends rnicd and all that it leaves for the next one. Returns what the removal printed, and
        what is left."""
        self.end(self._rnicd[side])
        return self.bed.run(side, f"""{RNICD} --unshare {self.options(side)}
            ip -o link show | grep -e 'rnic[0-9]*-' -e xdp
            find {DIRECTORY}/bpf/{side} {DIRECTORY}/{side}/state/ports -type f 2>/dev/null""").output

    def stop_all(self):
        left = {side: self.stop(side) for side in self._rnicd}
        return {side: output for side, output in left.items() if output}

    def replace(self, side):
        """Ends rnicd as `kill -9` does, and starts the next one."""
        self.kill(side, "rnicd")
        done = self._rnicd[side].wait()
        expect(done.code == 137, "rnicd was not killed:", done)
        self.start(side)

    def ask(self, side, what):
        """The answer of rnicd to an administrator."""
        done = self.bed.run(side, f"RNICD_SOCKET={DIRECTORY}/{side}/socket {CTL} -j -d {what}")
        expect(done.code == 0, f"rnic-ctl {what} ends with {done.code}:", done.output)
        return json.loads(done.output)

    def leases(self, side):
        """The leases of a side's clients, each with its port."""
        return [(each["port"], each["lease"]) for each in self.ask(side, "lease show")]


@contextlib.contextmanager
def shared(nics, mtu=1500, rules=""):
    """Both NICs shared, at an MTU, with more lines of the configuration. Nothing of it is left
    behind."""
    nics.bed.guest.run(PREPARE).checked()
    sharing = Sharing(nics.bed, rules)
    set_mtu(nics, mtu)
    try:
        for side in nic.SIDES:
            sharing.start(side)
        sharing.wait_for_carrier()
        yield sharing
    finally:
        left = sharing.stop_all()
        set_mtu(nics, 1500)
    expect(not left, "this is left behind:", left)


def expect_port(report):
    device = report["test_info"]["device"]
    expect("a port of rnicd" in device, "it was no port of rnicd:", device)


def operations(sharing, options="-s 20000 -n 40", host=nic.WEST):
    for test in ("write-bw", "read-bw", "send-bw"):
        expect_port(sharing.perf(test, f"--verify {options}", host=host))


@contextlib.contextmanager
def two_clients(sharing):
    """Two servers and their clients, each a port. The clients verify each message until the `with`
    ends."""
    tests = {"read-bw": "-p 7001", "send-bw": "-p 7002"}
    jobs = [sharing.serve(f"perf {test}", port, 300) for test, port in tests.items()]
    try:
        for test, port in tests.items():
            command = f"{sharing.ctl} perf {test} --netdev nic0 --verify -s 4096 -D 600 {port} {nic.WEST}"
            client = sharing.bed.spawn("east", f"exec {command}", 300)
            jobs.insert(0, client)
            # The table's head is printed behind the connection's exchange.
            sharing.wait(lambda: "#bytes" in client.output() or not client.running(), "a client connects", 60)
        yield
    finally:
        done = [sharing.end(job) for job in jobs]
    expect([each.code for each in done[:2]] == [0, 0], "a client fails before it is stopped:", *done)


def expect_progress(sharing):
    """Each port goes on sending, and nothing of it is dropped."""

    def sent():
        ports = [port["sent"] for side in nic.SIDES for port in sharing.ask(side, "stat show")]
        for port in ports:
            dropped = {why: count for why, count in port.items() if why not in ("to_nic", "to_port") and count["frames"]}
            expect(not dropped, "frames of a client were dropped:", dropped)
        return [port["to_nic"]["frames"] for port in ports]

    before = sent()
    expect(len(before) == 4, "there are not two ports on each side:", before)
    sharing.wait(lambda: all(now > then for now, then in zip(sent(), before)), "each port sends")


@case("ports of rnicd", kinds=EACH, long=True)
def _(nics):
    with shared(nics) as sharing:
        operations(sharing)


@case("ports of rnicd, MTU 9000", kinds=EACH, long=True)
def _(nics):
    with shared(nics, 9000) as sharing:
        operations(sharing)


@case("ports of rnicd in a VLAN", long=True)
def _(nics):
    with shared(nics) as sharing, vlan(nics) as west:
        for _ in each_rxvlan(nics):
            operations(sharing, host=west)


@case("two ports of rnicd, and the kernel's TCP and ping beside them", long=True)
def _(nics):
    with shared(nics) as sharing, two_clients(sharing):
        kernel_talks(nics, "while rnicd shares the NICs")
        expect_progress(sharing)


# The one case of the ordinary run: it reads, sends and writes.
@case("two ports of rnicd, which is killed with -9")
def _(nics):
    with shared(nics) as sharing:
        with two_clients(sharing):
            for side in nic.SIDES:
                before = sharing.leases(side)
                sharing.replace(side)
                after = sharing.leases(side)
                expect(before and before == after, f"{side}: the next rnicd has other leases:", before, after)
            expect_progress(sharing)
        expect_port(sharing.perf("write-bw", "--verify -s 4096 -n 40"))


@case("the link of shared NICs goes down and comes up", long=True)
def _(nics):
    with shared(nics) as sharing, two_clients(sharing):
        sharing.west("ip link set dev nic1 down; sleep 1; ip link set dev nic1 up").checked()
        sharing.wait_for_carrier()
        expect_progress(sharing)


@case("the driver of a shared NIC is unbound", long=True)
def _(nics):
    with shared(nics) as sharing:
        serving, client = traffic(sharing, seconds=60)
        bind_again = unbind(sharing)
        done, served = client.wait(), serving.wait()
        expect(done.code == 1 and served.code == 1, "the sides do not end with an error:", done, served)
        bind_again()
        sharing.expect_shared("west", times=2)
        sharing.wait_for_carrier()
        expect_port(sharing.perf("write-bw", "--verify -s 4096 -n 40"))


def queue_client(sharing):
    """A client of the west's server on TCP port 7002, which has queue 1 of nic0 and verifies until
    it is ended; and its port."""
    before = {port["port"] for port in sharing.ask("east", "port show")}
    job = sharing.bed.spawn("east", f"exec {sharing.ctl} perf send-bw --netdev nic0 --queue 1 --verify -s 4096 -D 600 -p 7002 {nic.WEST}", 300)
    sharing.wait(lambda: "#bytes" in job.output() or not job.running(), "the client with the queue connects", 60)
    expect(job.running(), "the client with the queue ends early:", job.output())
    ports = [port for port in sharing.ask("east", "port show") if port["port"] not in before]
    expect([(port.get("queue"), port.get("zero_copy")) for port in ports] == [(1, True)], "it is no queue with zero-copy:", ports)
    return job, ports[0]


def expect_killed(job, what):
    done = job.wait()
    expect(done.code == 137, f"{what} does not end the client by SIGKILL:", done)


def queue_moves(sharing):
    """Verified data both ways through queue 1 of nic0, without copying."""
    for test in ("write-bw", "read-bw"):
        device = sharing.perf(test, "--verify -s 20000 -n 40 --queue 1")["test_info"]["device"]
        expect("zero-copy, queue 1 as a port of rnicd" in device, "it was no queue with zero-copy:", device)


@case("a hardware queue as a port of rnicd", kinds=("igb", "virtio", "virtio-spare"))
def _(nics):
    rules = """[[user]]\\nname = "nobody"\\nqueues = ["{nic}:1"]\\n"""
    with shared(nics, rules=rules) as sharing:
        queue_moves(sharing)
        servers = [sharing.serve("perf read-bw", "-p 7001", 600)]
        other = sharing.bed.spawn("east", f"exec {sharing.ctl} perf read-bw --netdev nic0 --verify -s 4096 -D 600 -p 7001 {nic.WEST}", 300)
        sharing.wait(lambda: "#bytes" in other.output() or not other.running(), "a client connects", 60)
        try:
            for way in ("kill -9", "the administrator", "rnicd --unshare"):
                servers.append(sharing.serve("perf send-bw", "-p 7002", 300))
                client, port = queue_client(sharing)
                kernel_talks(nics, "beside a client that has a queue")
                expect(other.running(), "the other client fails beside one that has a queue:", other.output())
                if way == "kill -9":
                    sharing.replace("east")
                    expect([lease for number, lease in sharing.leases("east") if number == port["port"]], "the next rnicd has not the lease")
                    sharing.bed.guest.run(f"kill -9 {port['pid']}").checked()
                elif way == "the administrator":
                    sharing.bed.run("east", f"RNICD_SOCKET={DIRECTORY}/east/socket {CTL} client kill {port['port']}").checked()
                else:
                    left = sharing.stop("east")
                    expect(not left, "this is left behind:", left)
                expect_killed(client, way)
                sharing.end(servers.pop())
                if way != "rnicd --unshare":
                    expect(other.running(), "the other client fails with one that had a queue:", other.output())
            sharing.start("east")
            sharing.wait_for_carrier()
            queue_moves(sharing)
        finally:
            for each in [other, *servers]:
                sharing.end(each)


@case("a hardware queue as a port of rnicd listens where RSS brings all to it")
def _(nics):
    rules = """[[user]]\\nname = "nobody"\\nqueues = ["{nic}:1"]\\n"""
    with shared(nics, rules=rules) as sharing:
        serve = f"{sharing.ctl} perf write-bw --netdev nic0 --queue 1"
        refused = sharing.east(serve)
        expect(refused.code != 0 and "takes no rule" in refused.output, "it is not refused:", refused)
        sharing.east("ethtool -X nic0 start 1 equal 1").checked()
        try:
            serving = sharing.serve("perf write-bw", "--queue 1", 90, side="east")
            done = sharing.west(f"{sharing.ctl} perf write-bw --netdev nic1 --verify -s 20000 -n 40 {nic.EAST}", 90)
            served = serving.wait() if done.code == 0 else sharing.end(serving)
            expect(done.code == 0 and served.code == 0, "the sides do not end well:", done, served)
        finally:
            sharing.east("ethtool -X nic0 default").checked()
