"""ESP on the bypass: rnic with the host's associations in the east, the kernel's TCP behind the
kernel's ESP in the west. Associations and policies of the east have a number (`if_id`), with which
they are rnic's."""

import contextlib
import json
import pathlib
import secrets
import struct

import machine
from nic import EAST, WEST
from nic_cases import case, expect, listening

IF_ID = "0x524e"
REQUEST = 42
EAST6, WEST6 = "fd00:79::1", "fd00:79::2"
ESP, UDP = 50, 17
GCM = "aead rfc4106(gcm(aes)) {20} 128"

ALGORITHMS = {
    "GCM": GCM,
    "GCM of 256 bits": "aead rfc4106(gcm(aes)) {36} 128",
    "ChaCha20-Poly1305": "aead rfc7539esp(chacha20,poly1305) {36} 128",
    "GMAC": "aead rfc4543(gcm(aes)) {20} 128",
    "CBC and SHA2": "enc cbc(aes) {16} auth-trunc hmac(sha256) {32} 128",
    "CBC and SHA1": "enc cbc(aes) {32} auth-trunc hmac(sha1) {20} 96",
    "NULL and SHA2": "enc ecb(cipher_null) {0} auth-trunc hmac(sha256) {32} 128",
}


def keyed(algorithm):
    """An algorithm for `ip xfrm state`, with new keys."""
    words = []
    for word in algorithm.split():
        if word.startswith("{"):
            octets = int(word[1:-1])
            word = "0x" + secrets.token_hex(octets) if octets else '""'
        words.append(f'"{word}"' if "(" in word else word)
    return " ".join(words)


class Protection:
    """Policies for TCP between two addresses, and associations for each direction."""

    def __init__(self, nics, mode="transport", algorithm=GCM, ends=(EAST, WEST), esn=True, silent=False, peer="west", encap="",
                 window=128):
        self.nics, self.mode, self.algorithm, self.ends, self.esn = nics, mode, algorithm, ends, esn
        self.sides = ("east", peer)
        self._spis = iter(range(0x1001, 0x10000))
        self.silent = silent
        self.encap, self.window = encap, window
        self.states = []

    def __enter__(self):
        # They are never set back.
        self._errors_before = self._errors()
        self.add_policies(*self.sides)
        if self.silent:
            # The kernel of the east says nothing in the clear.
            self.nics.east(f"ip xfrm policy add src {self.ends[0]} dst {self.ends[1]} proto 6 dir out action block").checked()
        self.rekey()
        return self

    def __exit__(self, *_):
        for side in self.sides:
            self.nics.bed.run(side, "ip xfrm policy flush; ip xfrm state flush")

    def _number(self, side):
        return f"if_id {IF_ID}" if side == "east" else ""

    def add_policies(self, *sides):
        """Adds the policies of some sides."""
        both = dict(zip(self.sides, self.ends))
        for side in sides:
            own, = (end for name, end in both.items() if name == side)
            other, = (end for name, end in both.items() if name != side)
            for direction, source, to in (("out", own, other), ("in", other, own)):
                self.nics.bed.run(side, f"""ip xfrm policy add src {source} dst {to} proto 6 dir {direction} \
                    {self._number(side)} tmpl src {source} dst {to} proto esp reqid {REQUEST} mode {self.mode}""").checked()

    def rekey(self, limit=""):
        """Adds an association for each direction, and keeps the others. The receiver has it first. That
        of the east, to send with, may have a limit."""
        east, west = self.ends
        esn = "flag esn" if self.esn else ""
        adding = []
        for source, to in ((east, west), (west, east)):
            state = (source, to, next(self._spis))
            self.states.append(state)
            adding.append(f"""ip xfrm state add src {source} dst {to} proto esp spi {state[2]} reqid {REQUEST} \
                mode {self.mode} replay-window {self.window} {esn} {keyed(self.algorithm)} {self.encap}""")
        to_west, to_east = adding
        self.sending = to_west
        number = self._number("east")
        _, peer = self.sides
        self.nics.bed.run(peer, to_west).checked()
        self.nics.east(f"set -e\n{to_east} {number}\n{to_west} {number} {limit and f'limit {limit}'}").checked()
        self.nics.bed.run(peer, to_east).checked()

    def forget_policies(self):
        """Takes the policies of the east that are rnic's away."""
        east, west = self.ends
        for direction, source, to in (("out", east, west), ("in", west, east)):
            self.nics.east(f"ip xfrm policy delete src {source} dst {to} proto 6 dir {direction} if_id {IF_ID}").checked()

    def add_again(self, forgotten=lambda: None):
        """Takes the association that the east sends with away, waits until it is forgotten, and adds it
        as it was at first."""
        source, to, spi = self.states[-2]
        self.nics.east(f"ip xfrm state delete src {source} dst {to} proto esp spi {spi}").checked()
        forgotten()
        self.nics.east(f"{self.sending} if_id {IF_ID}").checked()

    def add_for_the_kernel(self):
        """Adds an association of the kernel in the east with the key that the east sends with."""
        source, to, spi = self.states[-2]
        self.nics.east(self.sending.replace(f"spi {spi}", f"spi {next(self._spis)}")).checked()

    def delete(self, keep=2):
        """Deletes all associations but the last ones."""
        gone = self.states[:len(self.states) - keep]
        self.states = self.states[len(gone):]
        script = "set -e\n" + "".join(f"ip xfrm state delete src {source} dst {to} proto esp spi {spi}\n"
                                      for source, to, spi in gone)
        for side in self.sides:
            self.nics.bed.run(side, script).checked()

    def _errors(self):
        lines = self.nics.bed.run(self.sides[1], "cat /proc/net/xfrm_stat").checked().split("\n")
        return {name: int(count) for name, count in (line.split() for line in lines if line)}

    def expect_no_errors(self, but=()):
        """The kernel's ESP has refused nothing since the beginning."""
        errors = {name: count - self._errors_before[name] for name, count in self._errors().items() if name not in but}
        errors = {name: count for name, count in errors.items() if count}
        expect(not errors, "the kernel's ESP has refused packets:", errors)


class Wire:
    """What is on the wire, as the host of the virtual machine sees it."""

    def __init__(self, nics, carrier=ESP):
        self._bed = nics.bed
        self._carrier = carrier
        self._path = pathlib.Path(nics.bed.directory) / "esp.pcap"
        # What was read of it: a header, then packets.
        self._read, self._packets = 24, []

    def __enter__(self):
        command = self._bed.inside("tcpdump", "-i", "tap0", "-Z", "root", "-U", "--immediate-mode", "-s", "100", "-B", "65536",
                                   "-w", self._path)
        log = open(self._path.with_suffix(".log"), "w+")
        self._job = machine.start(command, stderr=log)
        self._log = self._path.with_suffix(".log")
        self._bed.wait(lambda: "listening on" in self._log.read_text(), "tcpdump listens")
        return self

    def __exit__(self, *_):
        machine.stop(self._job)

    def packets(self):
        """Protocol, destination and the first octets behind the IP header of each packet."""
        with self._path.open("rb") as capture:
            capture.seek(self._read)
            octets = capture.read()
        at = 0
        while at + 16 <= len(octets):
            length, = struct.unpack_from("<I", octets, at + 8)
            frame = octets[at + 16:at + 16 + length]
            if at + 16 + length > len(octets):
                break
            at += 16 + length
            if len(frame) < 14 + 20:
                continue
            kind, = struct.unpack_from(">H", frame, 12)
            if kind == 0x0800:
                header = 14 + (frame[14] & 15) * 4
                self._packets.append((frame[23], frame[30:34], frame[header:header + 16]))
            elif kind == 0x86dd:
                self._packets.append((frame[20], frame[38:54], frame[54:70]))
        self._read += at
        return self._packets

    def numbers(self):
        """Destination, SPI and number of each packet of ESP, which may be in UDP beside what the key
        managers say: that begins with zero."""
        udp = 8 if self._carrier == UDP else 0
        for protocol, to, payload in self.packets():
            header = payload[udp:udp + 8]
            if protocol == self._carrier and len(header) == 8 and header[:4] != bytes(4):
                yield to, header

    def check(self, at_least):
        """All TCP was protected, and no number of an association came twice. tcpdump may be late."""
        self._bed.wait(lambda: sum(1 for _ in self.numbers()) >= at_least, f"{at_least} frames of ESP are captured")
        # Of the two, only the key managers send UDP.
        not_there = (6,) if self._carrier == ESP else (6, ESP)
        for protocol, to, payload in self.packets():
            expect(protocol not in not_there, f"a packet of protocol {protocol} went to {to.hex()}:", payload[:40].hex())
        seen = set()
        for number in self.numbers():
            expect(number not in seen, f"SPI and number {number[1].hex()} came twice")
            seen.add(number)


def perf(nics, test, options, host=WEST, wire=60, carrier=ESP):
    """A client over AF_XDP in the east, a server on TCP sockets of the kernel in the west."""
    with Wire(nics, carrier) as seen:
        report = nics.perf(test, f"--via xdp --ipsec-if-id {IF_ID} {options}", "--via kernel", host=host, timeout=120)
        device = report["test_info"]["device"]
        expect("XDP" in device, "it was not AF_XDP that carried the connection:", device)
        seen.check(wire)
    return report


OPERATIONS = (("write-bw", "-s 20000 -n 20 --verify"), ("read-bw", "-s 20000 -n 20 --verify"),
              ("send-lat", "-s 4000 -n 20 --verify"))


@contextlib.contextmanager
def addresses_v6(nics):
    for side, address, netdev in (("east", EAST6, "nic0"), ("west", WEST6, "nic1")):
        nics.bed.run(side, f"ip address add {address}/64 dev {netdev} nodad").checked()
    try:
        yield (EAST6, WEST6)
    finally:
        for side, netdev in (("east", "nic0"), ("west", "nic1")):
            nics.bed.run(side, f"ip -6 address flush dev {netdev} scope global").checked()


def modes(mode):
    @case(f"ESP against the kernel's: {mode} mode, IPv4", kinds=("virtio",))
    def _(nics):
        with Protection(nics, mode) as protection:
            for test, options in OPERATIONS:
                perf(nics, test, options, wire=20)
            protection.expect_no_errors()
            # Numbers are taken from the kernel's counter, and what was done is told.
            state = nics.east("ip -s xfrm state").checked()
            expect("oseq 0x0," not in state.split("dst " + WEST, 1)[1].split("src ", 1)[0],
                   "no numbers were taken from the kernel's counter:", state)

    @case(f"ESP against the kernel's: {mode} mode, IPv6", kinds=("virtio",))
    def _(nics):
        with addresses_v6(nics) as ends, Protection(nics, mode, ends=ends) as protection:
            for test, options in OPERATIONS:
                perf(nics, test, options, host=WEST6, wire=20)
            protection.expect_no_errors()


modes("transport")
modes("tunnel")

# A socket of a key manager, which has the kernel take ESP out of UDP.
KEY_MANAGER = """import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
held = socket.socket(family, socket.SOCK_DGRAM)
held.setsockopt(socket.IPPROTO_UDP, 100, 2)
held.bind((sys.argv[1], 4500))
print("ready", flush=True)
time.sleep(600)"""


@contextlib.contextmanager
def key_manager(nics, address):
    job = nics.bed.spawn("west", f"exec python3 -c '{KEY_MANAGER}' {address}", 600)
    try:
        nics.wait(lambda: "ready" in job.output() or not job.running(), "a socket takes ESP out of UDP", 60)
        expect(job.running(), "no socket takes ESP out of UDP:", job.output())
        yield
    finally:
        nics.end(job)


@case("ESP in UDP against the kernel's", kinds=("virtio",))
def _(nics):
    with addresses_v6(nics) as (east6, west6):
        for ends, any_address in (((EAST, WEST), "0.0.0.0"), ((east6, west6), "::")):
            encap = f"encap espinudp 4500 4500 {any_address}"
            for mode in ("transport", "tunnel"):
                with key_manager(nics, ends[1]), Protection(nics, mode, ends=ends, encap=encap) as protection:
                    for test, options in OPERATIONS:
                        perf(nics, test, options, host=ends[1], wire=20, carrier=UDP)
                    protection.expect_no_errors()
                    shown = nics.east(f"{nics.ctl} -j sa show").checked()
                    expect(shown.count("UDP 4500 to 4500") == 2, "the ports are not shown:", shown)


@case("ESP against the kernel's: every algorithm", kinds=("virtio",))
def _(nics):
    for algorithm in ALGORITHMS.values():
        for mode in ("transport", "tunnel"):
            with Protection(nics, mode, algorithm) as protection:
                perf(nics, "write-bw", "-s 20000 -n 10 --verify", wire=100)
                protection.expect_no_errors()


@case("ESP without extended numbers", kinds=("virtio",))
def _(nics):
    with Protection(nics, esn=False) as protection:
        perf(nics, "write-bw", "-s 20000 -n 10 --verify", wire=100)
        protection.expect_no_errors()


@case("ESP: no number comes twice, whoever is killed", kinds=("virtio",))
def _(nics):
    kill_again_and_again(nics, 4)


@case("ESP: no number comes twice, of sixty that are killed", kinds=("virtio",), long=True)
def _(nics):
    kill_again_and_again(nics, 60)


def kill_again_and_again(nics, times):
    with Protection(nics, silent=True), Wire(nics) as wire:
        for _ in range(times):
            serving = nics.serve("perf write-bw", "--via kernel")
            client = nics.bed.spawn("east", f"exec {nics.ctl} perf write-bw --netdev nic0 --via xdp --ipsec-if-id {IF_ID} "
                                            f"-D 20 {WEST}", 60)
            before = len(wire.packets())
            nics.wait(lambda: len(wire.packets()) > before + 300, "frames are on the wire", 40)
            nics.kill("east")
            killed = client.wait()
            expect(killed.code == 137, "it ended before it was killed:", killed)
            nics.end(serving)
            nics.wait_for_carrier()
        report = nics.perf("write-bw", f"--via xdp --ipsec-if-id {IF_ID} -s 20000 -n 10 --verify", "--via kernel")
        expect("XDP" in report["test_info"]["device"], "it was not AF_XDP", report)
    # Nor does the kernel of the east answer segments in the clear for a process that is gone.
    seen = set()
    for protocol, to, payload in wire.packets():
        expect(protocol != 6, "a segment went unprotected")
        if protocol == 50:
            expect((to, payload[:8]) not in seen, f"SPI and number {payload[:8].hex()} came twice")
            seen.add((to, payload[:8]))
    expect(len(seen) > 250 * times, f"only {len(seen)} frames of ESP were captured")


def begin_stream(nics, wire, options=""):
    """Starts a stream of Writes that goes on until it is ended, and returns its ends when it runs."""
    seconds = 1000
    serving = nics.serve("perf write-bw", "--via kernel", timeout=seconds + 90)
    client = nics.bed.spawn("east", f"exec {nics.ctl} -j perf write-bw --netdev nic0 --via xdp --ipsec-if-id {IF_ID} "
                                    f"{options} -s 20000 -D {seconds} {WEST}", seconds + 60)
    nics.wait(lambda: len(wire.packets()) > 300, "frames are on the wire", 40)
    return client, serving


def goes_on(nics, wire):
    """Waits until more of a stream is on the wire."""
    before = len(wire.packets())
    nics.wait(lambda: len(wire.packets()) > before + 200, "the stream goes on", 40)


def end_stream(wire, ends):
    """Ends a stream, whose client is the first of its ends, and checks all that was on the wire."""
    expect(ends[0].running(), "the stream has ended:", ends[0].output())
    ends[0].kill()
    done, served = (end.wait() for end in ends)
    expect(done.code == 0 and served.code == 0, "the stream has ended:", done.output, served.output)
    wire.check(1000)


def shown_protection(nics):
    """What `rnic-ctl conn show` says of what protects the connections of the east, which is the same
    for all."""
    shown = json.loads(nics.east(f"{nics.ctl} -j conn show").checked())
    protection = [each["client"]["protection"] for each in shown]
    expect(protection and all(each == protection[0] for each in protection), "one is protected otherwise:", shown)
    return protection[0]


@case("ESP: rekeying and deletion end no stream", kinds=("virtio",))
def _(nics):
    with Protection(nics) as protection, Wire(nics) as wire:
        ends = begin_stream(nics, wire)
        for number in range(6):
            if number % 3 == 2:
                protection.delete(keep=0)
                missing = lambda: shown_protection(nics)["state"] == "missing"
                nics.wait(missing, "the connection is shown to lack protection")
            protection.rekey()
            goes_on(nics, wire)
            protection.delete()
            to_west, to_east = (f"{spi:#010x}" for *_, spi in protection.states)
            expected = {"state": "esp", "required": False, "mode": "transport", "algorithm": "rfc4106(gcm(aes))",
                        "spi_out": to_west, "spi_in": to_east}
            nics.wait(lambda: shown_protection(nics) == expected, f"the connection is shown with {expected}")
        text = nics.east(f"{nics.ctl} conn show").checked()
        expect(f"protection: state esp mode transport algorithm rfc4106(gcm(aes)) spi_out {to_west} spi_in {to_east}" in text,
               "it is not shown in words:", text)
        end_stream(wire, ends)


@case("ESP: an association ends at its hard limit, and the stream waits for the next", kinds=("virtio",))
def _(nics):
    with Protection(nics) as protection, Wire(nics) as wire:
        ends = begin_stream(nics, wire, "--verify")
        for limit, at_most in (("byte-hard 1000000", 1000), ("packet-hard 400", 400)):
            listing = nics.bed.spawn("east", "exec timeout 60 ip xfrm monitor expire", 70)
            protection.rekey(limit)
            protection.delete()
            # It ends alone: nothing else is deleted after it.
            _, _, spi = protection.states.pop(-2)
            nics.wait(lambda: f"{spi:#010x}" in listing.output(), "the key manager is told", 40)
            expect("hard 1" in listing.output(), "another end is told than that of a hard limit:", listing.output())
            left = nics.east("ip xfrm state").checked()
            expect(f"{spi:#010x}" not in left, "the association is still there:", left)
            nics.wait(lambda: shown_protection(nics)["state"] == "missing", "the connection is shown to lack protection")
            sent = sum(1 for _, header in wire.numbers() if header[:4] == struct.pack(">I", spi))
            expect(100 < sent <= at_most, f"{sent} frames were sent, and {at_most} allowed by {limit}")
            protection.rekey()
            goes_on(nics, wire)
        end_stream(wire, ends)


@case("ESP: a key that is added again goes on with new numbers", kinds=("virtio",))
def _(nics):
    with Protection(nics) as protection, Wire(nics) as wire:
        ends = begin_stream(nics, wire)
        for _ in range(3):
            protection.add_again()
            goes_on(nics, wire)
        end_stream(wire, ends)


@case("ESP: a key that the kernel uses too is not used", kinds=("virtio",))
def _(nics):
    with Protection(nics) as protection, Wire(nics) as wire:
        serving = nics.serve("perf write-bw", "--via kernel", timeout=200)
        client = nics.bed.spawn("east", f"RUST_LOG=info exec {nics.ctl} perf write-bw --netdev nic0 --via xdp "
                                        f"--ipsec-if-id {IF_ID} -s 20000 -D 40 {WEST} 2>&1", 150)
        spi = struct.pack(">I", protection.states[-2][2])
        sent = lambda: sum(1 for _, _, payload in wire.packets() if payload[:4] == spi)
        nics.wait(lambda: sent() > 300, "frames are on the wire", 40)
        protection.add_for_the_kernel()
        nics.wait(lambda: "has the key of SPI" in client.output(), "the association is not used", 40)
        before = sent()
        protection.rekey()
        done, served = client.wait(), serving.wait()
        expect(done.code == 0 and served.code == 0, "the stream has ended:", done.output, served.output)
        expect(sent() - before < 100, f"{sent() - before} frames more were sealed with the key")


@case("ESP: plain segments never reach the engine", kinds=("virtio",))
def _(nics):
    with Protection(nics):
        server = f"{nics.ctl} rping -s -a {EAST} --netdev nic0 --via xdp --ipsec-if-id {IF_ID}"
        serving = listening(nics.bed, "east", server)
        # The west sends in the clear.
        nics.west("ip xfrm policy flush").checked()
        done = nics.west(f"timeout 5 {nics.ctl} rping -c -a {EAST} -C 3 --via kernel", 30)
        expect(done.code != 0, "a plain connection came to be:", done.output)
        served = nics.end(serving)
        expect("RST" not in done.output and "refused" not in done.output, "the engine has answered:", done.output, served.output)


@case("ESP: what is required goes protected, or not at all", kinds=("virtio",))
def _(nics):
    require = "--require-protection"
    with Wire(nics) as wire:
        serving = nics.serve("perf write-bw", "--via kernel")
        done = nics.east(f"{nics.ctl} perf write-bw --netdev nic0 --via xdp --ipsec-if-id {IF_ID} {require} {WEST}", 30)
        expect(done.code != 0 and "no policy" in done.output, "it connects without a policy:", done.output)
        nics.end(serving)
        expect(all(protocol != 6 for protocol, *_ in wire.packets()), "a segment went unprotected")
    # What the east's kernel opens meanwhile, it would answer in the clear.
    with Protection(nics, silent=True) as protection, Wire(nics) as wire:
        ends = begin_stream(nics, wire, require)
        protection.forget_policies()
        # The west, whose policies are there, sends again what it has no answer to.
        from_west = lambda: sum(1 for _, to, _ in wire.packets() if to == bytes(map(int, EAST.split("."))))
        before = from_west()
        nics.wait(lambda: from_west() > before + 3, "the west is not answered", 40)
        protection.add_policies("east")
        goes_on(nics, wire)
        end_stream(wire, ends)
