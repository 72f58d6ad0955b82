"""charon (strongSwan) as the key manager of both ends: it negotiates what protects rnic in the east
and the kernel in the west, replaces it under load, and brings it when rnic asks."""

import nic
from esp import EAST, IF_ID, UDP, WEST, Wire, begin_stream, end_stream, goes_on, shown_protection
from nic_cases import case, expect

SECRET = "0sMDEyMzQ1Njc4OTAxMjM0NTY3ODkwMQ=="

# With "trap" the policies are there whether there is an association or not: nothing goes in the clear
# before it is negotiated, or when it is deleted. Protocols by number: the guest has no /etc/protocols.
CONNECTION = """
connections {{
  storage {{
    version = {version}
    local_addrs = {local}
    remote_addrs = {remote}
    proposals = {ike}
    encap = {encap}
    local {{
      auth = psk
    }}
    remote {{
      auth = psk
    }}
    children {{
      rnic {{
        mode = {mode}
        local_ts = dynamic[6]
        remote_ts = dynamic[6]
        esp_proposals = {esp}
        replay_window = 1024
        start_action = trap
        {options}
      }}
    }}
  }}
}}
secrets {{
  ike-storage {{
    secret = {secret}
  }}
}}
"""

# What is negotiated by each version of IKE. strongSwan has no extended numbers in the first.
PROPOSALS = {
    1: {"ike": "aes128-sha256-ecp256", "esp": "aes128gcm16-ecp256"},
    2: {"ike": "aes128gcm16-prfsha256-ecp256", "esp": "aes128gcm16-ecp256-esn"},
}

DAEMON = """
charon {{
  load = random nonce openssl kdf kernel-netlink socket-default vici
  plugins {{
    vici {{
      socket = unix:///tmp/{side}.vici
    }}
  }}
  filelog {{
    stderr {{
      default = 1
      flush_line = yes
    }}
  }}
}}
"""


def inside(root, command, *variables):
    """A command in a root directory of its own, with what it shares with the guest."""
    mounts = "\n".join(f"mount --bind /{each} {root}/{each}" for each in ("dev", "proc", "tmp"))
    exports = "\n".join(f"export {each}" for each in variables)
    return f"""set -e
        {mounts}
        mount -t tmpfs run {root}/run
        {exports}
        exec chroot {root} {command}"""


class KeyManager:
    """charon on a side. In the east what it negotiates has a number."""

    def __init__(self, nics, side, mode, version, encap, options=()):
        self.nics, self.side = nics, side
        ends = (EAST, WEST) if side == "east" else (WEST, EAST)
        numbers = [f"if_id_in = {IF_ID}", f"if_id_out = {IF_ID}"] if side == "east" else []
        self._connection = CONNECTION.format(local=ends[0], remote=ends[1], mode=mode, secret=SECRET,
                                             options="\n        ".join([*numbers, *options]), version=version,
                                             encap="yes" if encap else "no",
                                             **PROPOSALS[version])
        self._inside = lambda command: inside(nic.image() / "charon", command, f"STRONGSWAN_CONF=/tmp/{side}.strongswan",
                                              f"SWANCTL_DIR=/tmp/{side}.swanctl")

    def __enter__(self):
        self.nics.bed.run(self.side, f"""set -e
            mkdir -p /tmp/{self.side}.swanctl
            cat >/tmp/{self.side}.strongswan <<END\n{DAEMON.format(side=self.side)}\nEND
            cat >/tmp/{self.side}.swanctl/swanctl.conf <<END\n{self._connection}\nEND""").checked()
        self._daemon = self.nics.bed.spawn(self.side, self._inside("/usr/lib/ipsec/charon"), 600)
        self.nics.wait(lambda: "spawning" in self._daemon.output() or not self._daemon.running(), "charon runs", 60)
        try:
            loaded = self.control("--load-all")
            expect("successfully loaded 1 connections" in loaded, "charon has not loaded its connection:", loaded, self.log())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.nics.end(self._daemon)
        self.nics.bed.run(self.side, "ip xfrm policy flush; ip xfrm state flush")

    def control(self, words):
        """What swanctl says."""
        return self.nics.bed.run(self.side, self._inside(f"/usr/sbin/swanctl {words} --uri unix:///tmp/{self.side}.vici")).output

    def log(self):
        return self._daemon.output()


class KeyManagers:
    """charon on both sides. Options are those of a child in the east."""

    def __init__(self, nics, *options, mode="transport", version=2, encap=False):
        self.west = KeyManager(nics, "west", mode, version, encap)
        self.east = KeyManager(nics, "east", mode, version, encap, options)

    def __enter__(self):
        self.west.__enter__()
        try:
            self.east.__enter__()
            # The kernel of the east says nothing in the clear to what it opens meanwhile.
            self.east.nics.east(f"ip xfrm policy add src {EAST} dst {WEST} proto 6 dir out action block").checked()
        except BaseException:
            self.west.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.east.__exit__()
        self.west.__exit__()

    def logs(self):
        return f"east:\n{self.east.log()[-3000:]}\nwest:\n{self.west.log()[-3000:]}"


def associations(wire):
    """How many associations have protected frames of each direction."""
    seen = {}
    for to, header in wire.numbers():
        seen.setdefault(to, set()).add(header[:4])
    return min(map(len, seen.values())) if len(seen) == 2 else 0


def replaces(nics, rekeyings, deletions):
    """A stream goes on while its associations are replaced and deleted."""
    # Nothing is negotiated before rnic asks.
    with KeyManagers(nics, "rekey_time = 2s", "rand_time = 0s", "life_time = 60s") as managers:
        with Wire(nics) as wire:
            state = nics.east("ip xfrm state").checked()
            expect("proto esp" not in state, "there is an association already:", state)
            ends = begin_stream(nics, wire, "--verify")
            shown = shown_protection(nics)
            expect(shown["state"] == "esp" and shown["algorithm"] == "rfc4106(gcm(aes))", "it is not shown:", shown)
            for number in range(1, rekeyings + 1):
                nics.wait(lambda: associations(wire) > number, f"association {number + 1} is used\n{managers.logs()}", 60)
            for _ in range(deletions):
                # Then nothing can be sent until rnic has asked for another one.
                before = associations(wire)
                managers.east.control("--terminate --child rnic")
                nics.wait(lambda: associations(wire) > before, f"another association is used\n{managers.logs()}", 60)
                goes_on(nics, wire)
            end_stream(wire, ends)


@case("ESP with charon: an association is asked for, and replaced under load", kinds=("virtio",))
def _(nics):
    replaces(nics, 23, 3)


@case("ESP with charon: a hundred associations, and ten deletions", kinds=("virtio",), long=True)
def _(nics):
    replaces(nics, 100, 10)


@case("ESP with charon: octets are counted, and associations replaced by them", kinds=("virtio",))
def _(nics):
    limits = ("rekey_time = 0s", "life_time = 3600s", "rekey_bytes = 500000", "life_bytes = 40000000",
              "rand_bytes = 0")
    for mode, version in (("transport", 2), ("tunnel", 2), ("tunnel", 1)):
        with KeyManagers(nics, *limits, mode=mode, version=version) as managers, Wire(nics) as wire:
            ends = begin_stream(nics, wire, "--verify")
            nics.wait(lambda: associations(wire) > 3, f"associations are replaced\n{managers.logs()}", 60)
            end_stream(wire, ends)


@case("ESP with charon: in UDP, beside what the key managers say there", kinds=("virtio",))
def _(nics):
    for mode in ("transport", "tunnel"):
        with KeyManagers(nics, "rekey_time = 3s", "rand_time = 0s", "life_time = 60s", mode=mode, encap=True) as managers:
            with Wire(nics, UDP) as wire:
                ends = begin_stream(nics, wire, "--verify")
                nics.wait(lambda: associations(wire) > 3, f"associations are replaced\n{managers.logs()}", 60)
                end_stream(wire, ends)
