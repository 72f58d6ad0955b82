"""pluto (libreswan) as the key manager of both ends. What has a number it gives to an interface of
that number, too, into which nothing is routed here."""

import nic
from charon import associations, inside
from esp import EAST, IF_ID, WEST, Wire, begin_stream, end_stream, goes_on, shown_protection
from esp_sharing import LISTENER, PORTS, given, shared
from nic_cases import CTL, case, expect, listening

# A number for a protocol would be taken for one of those that it knows by name.
CONNECTION = """
config setup
    ikev1-policy=drop
conn rnic
    authby=secret
    left={local}
    right={remote}
    leftprotoport={local_protocol}
    rightprotoport={remote_protocol}
    type={mode}
    esp=aes_gcm128
    replay-window=1024
    leftupdown=%disabled
    {options}
    auto=ondemand
"""

SECRET = ': PSK "01234567890123456789012345678901"'


class Pluto:
    """pluto on a side. What it protects is all TCP, or in the east one port of it."""

    def __init__(self, nics, side, mode, east="tcp"):
        self.nics, self.side = nics, side
        ends = ((EAST, east), (WEST, "tcp"))
        (local, local_protocol), (remote, remote_protocol) = ends if side == "east" else reversed(ends)
        numbered = f"ipsec-interface={int(IF_ID, 0)}" if side == "east" else ""
        self._connection = CONNECTION.format(local=local, remote=remote, mode=mode, options=numbered,
                                             local_protocol=local_protocol, remote_protocol=remote_protocol)
        self._place = f"/tmp/{side}.pluto"

    def _run(self, command):
        return self.nics.bed.run(self.side, inside(nic.image() / "libreswan", command)).output

    def __enter__(self):
        place = self._place
        self.nics.bed.run(self.side, f"""set -e
            rm -rf {place}
            mkdir -p {place}/nss {place}/run
            cat >{place}/ipsec.conf <<END\n{self._connection}\nEND
            cat >{place}/secrets <<END\n{SECRET}\nEND""").checked()
        self._run(f"/usr/bin/certutil -N -d sql:{place}/nss --empty-password")
        pluto = f"/usr/libexec/ipsec/pluto --nofork --stderrlog --config {place}/ipsec.conf " \
            f"--secretsfile {place}/secrets --nssdir {place}/nss --rundir {place}/run"
        self._daemon = self.nics.bed.spawn(self.side, inside(nic.image() / "libreswan", pluto), 600)
        try:
            runs = lambda: "selinux support" in self.log() or not self._daemon.running()
            self.nics.wait(runs, "pluto runs", 60)
            self._run(f"/usr/libexec/ipsec/addconn --config {place}/ipsec.conf --ctlsocket {place}/run/pluto.ctl --autoall")
            self.control("--listen")
            expect('"rnic": added IKEv2 connection' in self.log(), "pluto has not added its connection:", self.log()[-3000:])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.nics.end(self._daemon)
        self.nics.bed.run(self.side, f"ip xfrm policy flush; ip xfrm state flush; ip link delete ipsec{int(IF_ID, 0)}")

    def control(self, words):
        return self._run(f"/usr/libexec/ipsec/whack --ctlsocket {self._place}/run/pluto.ctl {words}")

    def log(self):
        return self._daemon.output()


def silence(nics):
    """The kernel of the east says nothing in the clear to what it opens. pluto deletes such a policy
    if it selects just what its own ones do, which have no device."""
    nics.east(f"ip xfrm policy add src {EAST} dst {WEST} proto 6 dev nic0 dir out action block").checked()


@case("ESP with libreswan: an association is asked for, and replaced under load", kinds=("virtio",))
def _(nics):
    for mode in ("transport", "tunnel"):
        with Pluto(nics, "west", mode) as west, Pluto(nics, "east", mode) as east, Wire(nics) as wire:
            silence(nics)
            state = nics.east("ip xfrm state").checked()
            expect("proto esp" not in state, "there is an association already:", state)
            ends = begin_stream(nics, wire, "--verify --require-protection")
            shown = shown_protection(nics)
            expect((shown["state"], shown["mode"]) == ("esp", mode), "it is not shown:", shown)
            for number in range(1, 4):
                said = east.control("--rekey-ipsec --name rnic")
                logs = lambda: f"{said}\neast:\n{east.log()[-3000:]}\nwest:\n{west.log()[-3000:]}"
                nics.wait(lambda: associations(wire) > number, f"association {number + 1} is used\n{logs()}", 60)
                goes_on(nics, wire)
            end_stream(wire, ends)
            # What it has done is counted, as pluto says when it deletes one.
            expect("MiB" in east.log(), "nothing was reported to pluto:", east.log()[-3000:])


@case("ESP with libreswan: for a client of rnicd that listens", kinds=("virtio",))
def _(nics):
    narrow = f"tcp/{LISTENER}"
    with shared(nics) as sharing, Pluto(nics, "west", "transport", narrow), Pluto(nics, "east", "transport", narrow) as east:
        silence(nics)
        with Wire(nics) as wire:
            serving = sharing.serve("perf write-bw", f"-p {LISTENER}", 120, side="east")
            command = f"exec {CTL} perf write-bw --via kernel --verify -s 20000 -D 8 -p {LISTENER} {EAST}"
            client = sharing.bed.spawn("west", command, 90)
            holders = lambda: set(given(sharing).values()) - {None}
            sharing.wait(lambda: len(holders()) == 1 or not client.running(), "one program has keys", 60)
            expect(client.running(), "the client ends early:", client.output(), east.log()[-3000:])
            done, served = client.wait(), serving.wait()
            expect(done.code == 0 and served.code == 0, "the sides do not end well:", done, served, east.log()[-3000:])
            wire.check(40)


@case("ESP with libreswan: for a client of rnicd that connects", kinds=("virtio",))
def _(nics):
    # From the one port that pluto protects, one connection.
    narrow = f"tcp/{PORTS[0]}"
    with shared(nics) as sharing, Pluto(nics, "west", "transport", narrow), Pluto(nics, "east", "transport", narrow) as east:
        silence(nics)
        with Wire(nics) as wire:
            serving = listening(nics.bed, "west", f"{CTL} rping -s -a {WEST} --via kernel", 150)
            client = sharing.bed.spawn("east", f"exec {sharing.ctl} rping -c -a {WEST} --netdev nic0 -v -V", 120)
            pings = lambda: client.output().count("ping data")
            sharing.wait(lambda: pings() > 20 or not client.running(), "pings go to and fro", 60)
            expect(client.running(), "the client ends early:", client.output()[-300:], east.log()[-3000:])
            port, = {port["port"] for port in sharing.ask("east", "port show")}
            holders = set(given(sharing).values())
            expect(holders == {port}, "the program has not the keys:", holders, client.output(), east.log()[-3000:])
            said = east.control("--rekey-ipsec --name rnic")
            sharing.wait(lambda: associations(wire) > 1, f"another association is used\n{said}\n{east.log()[-3000:]}", 60)
            before = pings()
            sharing.wait(lambda: pings() > before + 20 or not client.running(), "pings go on", 60)
            expect(client.running(), "the client ends early:", client.output()[-300:], east.log()[-3000:])
            nics.end(client)
            nics.end(serving)
            wire.check(40)
