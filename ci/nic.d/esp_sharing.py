"""ESP for clients of rnicd: the east is shared, and a program of nobody has the keys of associations
for its own TCP ports; the west is the kernel's TCP behind the kernel's ESP."""

import contextlib
import json

from esp import EAST, GCM, IF_ID, REQUEST, UDP, WEST, Protection, Wire, goes_on, key_manager, keyed
from nic import SIDES
from nic_cases import CTL, case, expect
from sharing import DIRECTORY, PREPARE, Sharing

# The ports of the client that connects, and of its listener.
PORTS = range(40000, 40004)
LISTENER = 7471


class Narrow(Protection):
    """Policies for TCP from the ports of the client alone, which are of the east, or to those of its
    listener."""

    def __init__(self, nics, ports=PORTS, **options):
        super().__init__(nics, **options)
        self._ports = ports

    def add_policies(self, *sides):
        for side in sides:
            east, west = self.ends
            outgoing, incoming = ("out", "in") if side == "east" else ("in", "out")
            number = self._number(side)
            lines = ["set -e"]
            for port in self._ports:
                for direction, source, to, where in ((outgoing, east, west, "sport"), (incoming, west, east, "dport")):
                    lines.append(f"""ip xfrm policy add src {source} dst {to} proto 6 {where} {port} dir {direction} {number} \
                        tmpl src {source} dst {to} proto esp reqid {REQUEST} mode {self.mode}""")
            self.nics.bed.run(side, "\n".join(lines)).checked()


class SharedEast(Sharing):
    """The east alone has an rnicd; nobody may have some TCP ports protected."""

    def start(self, side):
        interface, _ = SIDES[side]
        place = f"{DIRECTORY}/{side}"
        self.bed.run(side, f"""mkdir -p {place}
            cat >{place}/rnicd.toml <<END
socket_group = "nogroup"
[defaults]
listen = ["1024-65535"]
rate = "none"
peers = "all"
[[device]]
name = "{interface}"
ipsec_if_id = {IF_ID}
{self._rules}
END""").checked()
        self._launch(side)


RULES = f"""[[user]]
name = "nobody"
protected = [{LISTENER}, "{PORTS[0]}-{PORTS[-1]}"]
"""


@contextlib.contextmanager
def shared(nics, rules=RULES):
    nics.bed.guest.run(PREPARE).checked()
    sharing = SharedEast(nics.bed, rules)
    try:
        sharing.start("east")
        sharing.wait_for_carrier()
        yield sharing
    finally:
        left = sharing.stop_all()
    expect(not left, "this is left behind:", left)


def stream(sharing, options="", port=""):
    """Starts a stream from a program of nobody, which goes on until it is ended, and the kernel's
    server. Returns both ends."""
    serving = sharing.serve("perf write-bw", f"--via kernel {port}", timeout=400)
    command = f"exec {sharing.ctl} -j perf write-bw --netdev nic0 {options} {port} -s 20000 -D 350 {WEST}"
    client = sharing.bed.spawn("east", command, 400)
    return client, serving


def begin(sharing, wire, options=""):
    before = sum(1 for _ in wire.packets())
    client, serving = stream(sharing, options)
    more = lambda: sum(1 for _ in wire.packets()) > before + 200 or not client.running()
    sharing.wait(more, "frames are on the wire", 60)
    if not client.running():
        sharing.end(serving)
    expect(client.running(), "the client ends early:", client.output())
    return client, serving


def end(wire, ends):
    expect(ends[0].running(), "the stream has ended:", ends[0].output())
    ends[0].kill()
    done, served = (end.wait() for end in ends)
    expect(done.code == 0 and served.code == 0, "the stream has ended:", done.output, served.output)
    wire.check(300)


def given(sharing):
    """What root is told: SPIs with the port that has them."""
    done = sharing.bed.run("east", f"RNICD_SOCKET={DIRECTORY}/east/socket {CTL} -j sa show")
    expect(done.code == 0, "sa show fails:", done.output)
    return {each["sa"]: each.get("port") for each in json.loads(done.output)}


@case("ESP for a client of rnicd: rekeying, deletion, and who has the keys", kinds=("virtio",))
def _(nics):
    with shared(nics) as sharing, Narrow(nics, silent=True) as protection, Wire(nics) as wire:
        expect(set(given(sharing).values()) == {None}, "somebody has keys already:", given(sharing))
        ends = begin(sharing, wire, "--require-protection --ipsec-if-id " + IF_ID)
        port, = {port["port"] for port in sharing.ask("east", "port show")}
        spis = {f"{spi:#010x}" for *_, spi in protection.states}
        expect(given(sharing) == {spi: port for spi in spis}, "it is not said who has the keys:", given(sharing))
        leases = [lease for _, lease in sharing.leases("east")]
        numbers = [int(lease.rsplit(":", 1)[1]) for lease in leases]
        expect(numbers and set(numbers) <= set(PORTS), "it connects from other ports:", leases)
        shown = json.loads(sharing.east(f"{sharing.ctl} -j conn show").checked())
        expect({each["client"]["protection"]["state"] for each in shown} == {"esp"}, "it is not shown:", shown)
        for step in range(4):
            if step % 2:
                protection.delete(keep=0)
            protection.rekey()
            goes_on(sharing, wire)
            protection.delete()
        # Nobody else gets the TCP ports, nor a second program of the user the keys.
        second, serving = stream(sharing, port="-p 7002")
        done = second.wait()
        sharing.end(serving)
        expect(done.code != 0 and "for one port alone" in done.output, "a second program gets the keys:", done.output)
        sharing.replace("east")
        goes_on(sharing, wire)
        protection.rekey()
        goes_on(sharing, wire)
        end(wire, ends)
        # While there was none, the kernel of the west had nothing to send with either.
        protection.expect_no_errors(but=["XfrmOutNoStates"])
        # With the port its associations end.
        gone = lambda: "proto esp" not in sharing.east("ip xfrm state").checked()
        sharing.wait(gone, "the associations of a port that has ended are gone")


@case("ESP for a client of rnicd: no number comes twice, whoever is killed", kinds=("virtio",))
def _(nics):
    with shared(nics) as sharing, Narrow(nics, silent=True) as protection, Wire(nics) as wire:
        for round in range(3):
            client, serving = begin(sharing, wire)
            sharing.replace("east")
            goes_on(sharing, wire)
            sharing.kill("east", "rnic-ctl")
            client.wait()
            sharing.end(serving)
            gone = lambda: "proto esp" not in sharing.east("ip xfrm state").checked()
            sharing.wait(gone, "the associations of a client that was killed are gone")
            nics.west("ip xfrm state flush").checked()
            protection.states.clear()
            protection.rekey()
        wire.check(600)


@case("ESP for a client of rnicd: a key that it had comes back, and is nobody else's", kinds=("virtio",))
def _(nics):
    with shared(nics) as sharing, Narrow(nics, silent=True) as protection, Wire(nics) as wire:
        ends = begin(sharing, wire, "--require-protection --ipsec-if-id " + IF_ID)
        _, _, spi = protection.states[-2]
        is_known = lambda: f"{spi:#010x}" in given(sharing)
        # The program goes on with it, and with new numbers.
        for _ in range(2):
            protection.add_again(lambda: sharing.wait(lambda: not is_known(), "the association is forgotten"))
            goes_on(sharing, wire)
        end(wire, ends)
        # No program has it now: it ends whenever it comes.
        is_there = lambda: f"{spi:#010x}" in sharing.east("ip xfrm state").checked()
        for _ in range(2):
            sharing.wait(lambda: not is_there(), "the association ends")
            sharing.wait(lambda: not is_known(), "the association is forgotten")
            nics.east(f"{protection.sending} if_id {IF_ID}").checked()
        sharing.wait(lambda: not is_there(), "the association ends")


@case("ESP for a client of rnicd: it listens, and plain segments do not reach it", kinds=("virtio",))
def _(nics):
    with shared(nics) as sharing, Narrow(nics, [LISTENER], silent=True) as protection, Wire(nics) as wire:
        serving = sharing.serve("perf write-bw", f"-p {LISTENER}", 120, side="east")
        done = sharing.west(f"{CTL} perf write-bw --via kernel --verify -s 20000 -n 20 -p {LISTENER} {EAST}", 90)
        served = serving.wait()
        expect(done.code == 0 and served.code == 0, "the sides do not end well:", done, served)
        wire.check(20)
        protection.expect_no_errors()
    with shared(nics) as sharing, Narrow(nics, [LISTENER], silent=True):
        serving = sharing.serve("perf write-bw", f"-p {LISTENER}", 120, side="east")
        nics.west("ip xfrm policy flush").checked()
        done = nics.west(f"timeout 5 {CTL} perf write-bw --via kernel -p {LISTENER} {EAST}", 30)
        expect(done.code != 0, "a plain connection came to be:", done.output)
        received = sharing.ask("east", "dev show")[0]["received"]
        expect(received["unprotected"] > 0, "plain segments are not counted:", received)
        sharing.end(serving)


def others(numbers):
    """A batch of `ip` for the east: policies and associations for the listener with more peers."""
    for number in numbers:
        peer, request = f"10.79.{1 + number // 200}.{1 + number % 200}", 1000 + number
        for direction, (source, to), where in (("out", (EAST, peer), "sport"), ("in", (peer, EAST), "dport")):
            yield f"xfrm policy add src {source} dst {to} proto 6 {where} {LISTENER} dir {direction} if_id {IF_ID} " \
                f"tmpl src {source} dst {to} proto esp reqid {request} mode transport"
            yield f"xfrm state add src {source} dst {to} proto esp spi {0x100 + number:#x} reqid {request} mode transport " \
                f"replay-window 128 flag esn {keyed(GCM)} if_id {IF_ID}"


@case("ESP for a client of rnicd: in UDP", kinds=("virtio",))
def _(nics):
    encap = "encap espinudp 4500 4500 0.0.0.0"
    with shared(nics) as sharing, key_manager(nics, WEST):
        for mode in ("transport", "tunnel"):
            narrow = Narrow(nics, [*PORTS, LISTENER], mode=mode, encap=encap, silent=True)
            with narrow as protection, Wire(nics, UDP) as wire:
                ends = begin(sharing, wire)
                shown = sharing.bed.run("east", f"RNICD_SOCKET={DIRECTORY}/east/socket {CTL} sa show").checked()
                expect(shown.count("UDP 4500 to 4500") == 2, "the ports are not shown:", shown)
                protection.rekey()
                goes_on(sharing, wire)
                end(wire, ends)
                protection.rekey()
                serving = sharing.serve("perf write-bw", f"-p {LISTENER}", 120, side="east")
                done = sharing.west(f"{CTL} perf write-bw --via kernel --verify -s 20000 -n 20 -p {LISTENER} {EAST}", 90)
                served = serving.wait()
                expect(done.code == 0 and served.code == 0, "the sides do not end well:", done, served)
                protection.expect_no_errors(but=["XfrmOutNoStates"])


@case("ESP for a client of rnicd: it has many peers", kinds=("virtio",))
def _(nics):
    count = 300
    with shared(nics) as sharing, Narrow(nics, [LISTENER], silent=True) as protection, Wire(nics) as wire:
        # A command has no room for all.
        for first in range(1, count, 50):
            batch = "\n".join(others(range(first, first + 50)))
            nics.east(f"ip -batch - <<END\n{batch}\nEND", 120).checked()
        serving = sharing.serve("perf write-bw", f"-p {LISTENER}", 200, side="east")
        # Both directions to a dummy have one SPI; those of the west have two.
        has_all = lambda: sum(port is not None for port in given(sharing).values()) == count + 2
        sharing.wait(lambda: has_all() or not serving.running(), "the listener has all associations", 60)
        done = sharing.west(f"{CTL} perf write-bw --via kernel --verify -s 20000 -n 20 -p {LISTENER} {EAST}", 90)
        served = serving.wait()
        expect(done.code == 0 and served.code == 0, "the sides do not end well:", done, served)
        wire.check(20)
        protection.expect_no_errors()


@case("ESP for a client of rnicd: who may not have keys is refused with the reason", kinds=("virtio",))
def _(nics):
    def refused(sharing, reason):
        client, serving = stream(sharing)
        done = client.wait()
        sharing.end(serving)
        expect(done.code != 0 and reason in done.output, f"it is not refused by \"{reason}\":", done.output)

    with Wire(nics) as wire:
        with shared(nics, "") as sharing, Protection(nics):
            refused(sharing, "gets no keys for it (`protected` of rnicd.toml)")
        with shared(nics) as sharing:
            with Protection(nics):
                # A policy for all TCP ports is for no client alone.
                refused(sharing, "gets no keys for it (`protected` of rnicd.toml)")
            with Narrow(nics) as narrow:
                # Another policy with the reqid makes them for more than the client's ports.
                nics.east(f"""ip xfrm policy add src {EAST} dst {WEST} proto 17 dir out if_id {IF_ID} \
                    tmpl src {EAST} dst {WEST} proto esp reqid 42 mode transport""").checked()
                refused(sharing, "selects other protocols than TCP")
                expect(set(given(sharing).values()) == {None}, "somebody has keys:", given(sharing))
            with Narrow(nics) as narrow:
                # Peers may protect with them what goes to others, too.
                nics.east(f"""ip xfrm policy add src {EAST} dst {WEST} proto 6 sport 7 dir out if_id {IF_ID} \
                    tmpl src {EAST} dst {WEST} proto esp reqid {REQUEST} mode transport level use""").checked()
                refused(sharing, "protects where it can alone (`level use`)")
                expect(set(given(sharing).values()) == {None}, "somebody has keys:", given(sharing))
        expect(all(protocol != 6 for protocol, *_ in wire.packets()), "a segment went unprotected")
