"""Connections over TCP sockets of the kernel, where only the kernel can go: WireGuard, IPsec, a
VRF, through the firewall, and interfaces that are no NICs."""

import contextlib
import secrets

from domains import domain
from nic import EAST, WEST
from nic_cases import CTL, LAST, case, expect, listening, tcpdump

# rnic-ctl's.
PORT = 18515
SOCKETS = f"{CTL} perf --via kernel"


def write(nics, host, east="", west="", server="west"):
    """Verified Writes by sockets on these interfaces, or on any. Returns how the client and the
    server ended."""
    netdevs = {"east": east and f"--netdev {east}", "west": west and f"--netdev {west}"}
    client = "east" if server == "west" else "west"
    serving = listening(nics.bed, server, f"{SOCKETS} write-bw {netdevs[server]}")
    done = nics.bed.run(client, f"{SOCKETS} write-bw --verify -s 20000 -n 20 {netdevs[client]} {host}")
    return done, serving.wait() if done.code == 0 else nics.end(serving)


def expect_carried(nics, host, east="", west="", server="west"):
    done, served = write(nics, host, east, west, server)
    way = f"kernel TCP on {(east, west)[server == 'east'] or 'any interface'}"
    expect(done.code == 0 and served.code == 0 and way in done.output, f"no Writes over {way}:", done.output, served.output)


def expect_pings(nics, host, east, west):
    serving = listening(nics.bed, "west", f"{CTL} rping -s --via kernel --netdev {west} -a {host} -C 5 -S 5000")
    done = nics.east(f"{CTL} rping -c --via kernel --netdev {east} -a {host} -C 5 -V -S 5000")
    served = serving.wait() if done.code == 0 else nics.end(serving)
    expect(done.code == 0 and served.code == 0, f"rping over {east} ends with {done.code}:", done.output, served.output)


def expect_refused(nics, command, *words, side="east"):
    """rnic-ctl fails, with these words."""
    done = nics.bed.run(side, f"{CTL} {command}")
    expect(done.code != 0 and all(word in done.output for word in words), f"rnic-ctl {command} does not say {words}:", done)


def sent(nics, act, *filters):
    """Counts the frames that both NICs send meanwhile: those that match each filter of tcpdump."""
    # What a NIC receives is seen a second time where the kernel has decrypted it.
    with tcpdump(nics.bed, "east", "/tmp/east.pcap", "outbound"), tcpdump(nics.bed, "west", "/tmp/west.pcap", "outbound"):
        act()
    count = "for side in east west; do tcpdump -nn -r /tmp/$side.pcap '({}) and not {}' 2>/dev/null; done | wc -l"
    return [int(nics.bed.guest.run(count.format(each, LAST)).checked()) for each in filters]


@contextlib.contextmanager
def set_up(nics, script, undo):
    """Runs a script on each side, with its own and the other's address: {own}, {other}, and
    {number}, which is 1 in the east and 2 in the west."""
    words = {"east": {"own": EAST, "other": WEST, "number": 1}, "west": {"own": WEST, "other": EAST, "number": 2}}
    try:
        for side, each in words.items():
            nics.bed.run(side, "set -e\n" + script.format(**each)).checked()
        yield
    finally:
        for side in words:
            nics.bed.run(side, undo)


@contextlib.contextmanager
def wireguard(nics):
    """wg0 on each side, with the addresses 10.81.0.1 and 10.81.0.2."""
    make = """
        ip link add wg0 type wireguard
        (umask 077; wg genkey >/tmp/wg{number})
        wg set wg0 listen-port 51820 private-key /tmp/wg{number}
        ip address add 10.81.0.{number}/24 dev wg0
        ip link set dev wg0 up"""
    with set_up(nics, make, "ip link delete dev wg0"):
        for side, peer, address in (("east", "west", WEST), ("west", "east", EAST)):
            key = nics.bed.run(peer, "wg show wg0 public-key").checked().strip()
            nics.bed.run(side, f"wg set wg0 peer {key} endpoint {address}:51820 allowed-ips 10.81.0.0/24").checked()
        yield


@case("sockets over WireGuard")
def _(nics):
    def talk():
        expect_pings(nics, "10.81.0.2", "wg0", "wg0")
        expect_carried(nics, "10.81.0.2", "wg0", "wg0")

    with wireguard(nics):
        encrypted, plain = sent(nics, talk, "udp port 51820", "ip and not udp port 51820")
        expect(encrypted > 40 and plain == 0, f"{encrypted} frames of WireGuard were sent, and {plain} others")
        expect_refused(nics, "perf write-bw --via xdp --netdev wg0", "wg0 is no Ethernet device", "--via kernel")
        doctor = nics.east(f"{CTL} doctor --netdev wg0").output
        expect("--via kernel" in doctor, "doctor does not say what carries connections there:", doctor)


def protection(nics, mode):
    """IPsec policies for TCP between the sides' NICs (transport), or for all between 10.82.0.1 and
    10.82.0.2 (tunnel), with fixed keys."""
    key = secrets.token_hex(20)
    out = {"transport": "src {own} dst {other} proto 6", "tunnel": "src 10.82.0.{number} dst 10.82.0.0/24"}[mode]
    into = {"transport": "src {other} dst {own} proto 6", "tunnel": "src 10.82.0.0/24 dst 10.82.0.{number}"}[mode]
    esp = f"proto esp reqid 42 mode {mode}"
    states = "".join(f"""
        ip xfrm state add src {source} dst {to} spi {spi} {esp} replay-window 64 aead "rfc4106(gcm(aes))" 0x{key} 128"""
        for source, to, spi in ((EAST, WEST, 0x1001), (WEST, EAST, 0x1002)))
    policies = f"""
        ip xfrm policy add {out} dir out tmpl src {{own}} dst {{other}} {esp}
        ip xfrm policy add {into} dir in tmpl src {{other}} dst {{own}} {esp}
        ip address add 10.82.0.{{number}}/24 dev $(ls /sys/class/net | grep nic)"""
    return set_up(nics, states + policies, """ip xfrm policy flush
        ip xfrm state flush
        for each in nic0 nic1; do ip address flush dev $each to 10.82.0.0/24; done""")


def esp_case(mode, host, refused):
    @case(f"sockets over ESP, {mode} mode")
    def _(nics):
        def talk():
            expect_pings(nics, host, "nic0", "nic1")
            expect_carried(nics, host, "nic0", "nic1")

        with protection(nics, mode):
            encrypted, plain = sent(nics, talk, "esp", "ip and not esp")
            expect(encrypted > 40 and plain == 0, f"{encrypted} frames of ESP were sent, and {plain} others")
            # AF_XDP goes around the kernel: it neither connects nor listens there. In generic mode the
            # NIC keeps its carrier.
            by_xdp = f"perf write-bw --via xdp --xdp-mode generic --netdev nic0 {refused}"
            expect_refused(nics, by_xdp, "IPsec policy", "--via kernel")
        nics.wait_for_carrier()


esp_case("transport", WEST, refused=WEST)
esp_case("tunnel", "10.82.0.2", refused="")


# igb has no carrier for long whenever it enters a VRF or leaves it.
@case("sockets within a VRF", kinds=("virtio",))
def _(nics):
    with domain(nics, "nic1"):
        # A member of the VRF has its addresses, and so has the VRF.
        expect_carried(nics, WEST, "nic0", "nic1")
        expect_carried(nics, WEST, "nic0", "red")
        expect_carried(nics, EAST, "nic0", "nic1", server="east")
        # Sockets outside have neither its ports nor its routes.
        done, served = write(nics, WEST)
        expect(done.code != 0 and "refused" in done.output, "a listener outside the VRF is reached in it:", done, served)
        expect_refused(nics, f"perf write-bw --via kernel {EAST}", "no route", side="west")


def at_the_rule(nics):
    """How many packets the firewall's rule has seen."""
    return int(nics.west("nft list table inet test").checked().split("packets ")[1].split()[0])


@contextlib.contextmanager
def rule(nics, what):
    """A rule of the west's firewall for TCP to this port. The `with` is to end it."""
    nics.west(f"""nft -f - <<END
table inet test {{
    chain input {{
        type filter hook input priority 0
        tcp dport {PORT} counter {what}
    }}
}}
END""").checked()
    try:
        yield
    finally:
        nics.west("nft delete table inet test").checked()


@case("sockets through a firewall")
def _(nics):
    serving = listening(nics.bed, "west", f"{SOCKETS} write-bw --netdev nic1")
    command = f"{SOCKETS} write-bw --netdev nic0 --verify -s 20000 -n 20 {WEST}"
    with rule(nics, "reject with tcp reset"):
        done = nics.east(command)
        expect(done.code != 0 and "refused" in done.output, "a connection that is rejected is not refused:", done)
    with rule(nics, "drop"):
        client = nics.bed.spawn("east", f"exec {command}")
        nics.wait(lambda: at_the_rule(nics) >= 2, "the kernel tries again to connect")
        expect(client.running(), "the client gives up at once:", client.output())
    done = client.wait()
    served = serving.wait() if done.code == 0 else nics.end(serving)
    expect(done.code == 0 and served.code == 0, "it does not go on without the rule:", done.output, served.output)


@contextlib.contextmanager
def pinging(nics):
    """Pings without end. Yields the client's job, and what counts its pings."""
    rping, options = f"{CTL} rping --via kernel", f"-a {WEST} -p {PORT}"
    serving = listening(nics.bed, "west", f"{rping} -s --netdev nic1 {options}", 120)
    client = nics.bed.spawn("east", f"exec {rping} -c --netdev nic0 -v -V {options}", 120)
    pings = lambda: client.output().count("ping data")
    try:
        nics.wait(lambda: pings() > 2 or not client.running(), "pings go to and fro")
        yield client, pings
    finally:
        nics.end(client)
        nics.end(serving)


@case("sockets of a connection that the firewall stops")
def _(nics):
    with pinging(nics) as (client, pings):
        with rule(nics, "drop"):
            nics.wait(lambda: at_the_rule(nics) >= 1, "the rule drops")
            before, dropped = pings(), at_the_rule(nics)
            nics.wait(lambda: at_the_rule(nics) >= dropped + 2, "the kernel sends again")
            # The one or the other waits for an acknowledgment.
            shown = [side(f"ss -Htnpo state established '{end} = {WEST}:{PORT}'").output
                     for side, end in ((nics.east, "dst"), (nics.west, "src"))]
            expect(all('"rnic-ctl"' in each for each in shown) and "timer:(on" in "".join(shown), "ss does not show it:", *shown)
            expect(client.running() and pings() == before, "the connection ended, or went on:", client.output()[-300:])
        nics.wait(lambda: pings() > before + 2 or not client.running(), "pings go on")
        done = nics.end(client)
        expect(done.code == 130, "the client fails:", done.output[-300:])


@case("sockets end whose peer the firewall cuts off", long=True)
def _(nics):
    with pinging(nics) as (client, _), rule(nics, "drop"):
        late = nics.east(f"{SOCKETS} write-bw --netdev nic0 {WEST}")
        expect(late.code != 0 and "timed out" in late.output, "a connection that is dropped does not time out:", late)
        done = client.wait()
        expect(done.code != 0 and "timed out" in done.output, "rping does not time out:", done.code, done.output[-300:])


@contextlib.contextmanager
def vxlan(nics):
    # QEMU's igb does not complete the checksums of what is within others' packets, and says it does.
    make = """
        ip link add vx0 type vxlan id 7 local {own} remote {other} dstport 4789
        ethtool -K vx0 tx off >/dev/null
        ip address add 10.83.0.{number}/24 dev vx0
        ip link set dev vx0 up"""
    with set_up(nics, make, "ip link delete dev vx0"):
        yield


@contextlib.contextmanager
def bonds(nics):
    """A bond on each side, over a VXLAN."""
    make = """
        ip link add bond0 type bond mode active-backup miimon 100
        ip address flush dev vx0
        ip link set dev vx0 down
        ip link set dev vx0 master bond0
        ip address add 10.83.0.{number}/24 dev bond0
        ip link set dev bond0 up"""
    with vxlan(nics), set_up(nics, make, "ip link delete dev bond0"):
        yield


@contextlib.contextmanager
def dummies(nics):
    """An address of each side on a dummy device: the NICs carry it."""
    make = """
        ip link add dummy0 type dummy
        ip address add 10.84.0.{number}/32 dev dummy0
        ip link set dev dummy0 up
        ip route add 10.84.0.0/24 via {other}"""
    with set_up(nics, make, "ip link delete dev dummy0; ip route delete 10.84.0.0/24"):
        yield


@case("sockets at link-local addresses, on any interface")
def _(nics):
    show = "ip -6 -oneline address show dev nic1 scope link -tentative"
    nics.wait(lambda: nics.west(show).output, "the west's NIC has a link-local address")
    address = nics.west(show).checked().split("inet6 ")[1].split("/")[0]
    serving = listening(nics.bed, "west", f"{SOCKETS} write-bw --local {address}%nic1")
    done = nics.east(f"{SOCKETS} write-bw --verify -s 20000 -n 20 {address}%nic0")
    served = serving.wait() if done.code == 0 else nics.end(serving)
    expect(done.code == 0 and served.code == 0, f"no Writes to {address}:", done.output, served.output)


# Carries packets between two TUN devices, one in the namespace of each side.
TUNNEL = """exec python3 -c '
import contextlib, ctypes, fcntl, os, select, struct
CLONE_NEWNET, TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x40000000, 0x400454ca, 1, 0x1000
ends = []
for side in "east", "west":
    namespace = os.open("/run/netns/" + side, os.O_RDONLY)
    assert ctypes.CDLL(None).setns(namespace, CLONE_NEWNET) == 0
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
    ends.append(end)
print("listening", flush=True)
while True:
    for end in select.select(ends, [], [])[0]:
        packet = os.read(end, 65536)
        with contextlib.suppress(OSError): # the other end is not up yet
            os.write(ends[1 - ends.index(end)], packet)
'"""


@contextlib.contextmanager
def tunnel(nics):
    job = nics.bed.guest.spawn(TUNNEL, 120)
    nics.wait(lambda: "listening" in job.output() or not job.running(), "the tunnel is there")
    expect(job.running(), "there is no tunnel:", job.output())
    make = """
        ip address add 10.85.0.{number}/24 dev tun0
        ip link set dev tun0 up"""
    try:
        with set_up(nics, make, ""):
            yield
    finally:
        nics.end(job)


def device_case(name, make, address):
    @case(f"sockets on {name}")
    def _(nics):
        with make(nics):
            expect_carried(nics, address, name, name)


for name, make, address in (
        ("vx0", vxlan, "10.83.0.2"), ("bond0", bonds, "10.83.0.2"), ("dummy0", dummies, "10.84.0.2"), ("tun0", tunnel, "10.85.0.2")):
    device_case(name, make, address)
