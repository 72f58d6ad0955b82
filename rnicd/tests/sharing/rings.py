"""The rings of a port, and frames to send, without any of rnic's code. What `script.py` does stands
on it: both run as one text."""

import mmap
import os
import random
import socket
import struct

AF_XDP, SOL_XDP, XDP_MMAP_OFFSETS = 44, 283, 1
RX_RING, TX_RING, FILL_RING, COMPLETION_RING = 0, 0x80000000, 0x100000000, 0x180000000
# The shared device, an address of this host, and one of the peer's.
NETDEV, NEAR, FAR = (os.environ.get(name, usual) for name, usual in [("NETDEV", "nic"), ("NEAR", "10.9.0.1"), ("FAR", "10.9.0.2")])
SOURCE_PORT = 5005


def attempt(what):
    try:
        what()
    except OSError:
        pass


class Rings:
    """The rings and the memory of a port, without any of rnic's code."""

    def __init__(self, grant, descriptors):
        self.grant, (xdp, memory) = grant, descriptors
        self.socket = socket.socket(AF_XDP, socket.SOCK_RAW, 0, fileno=xdp)
        chunks = grant["rx_chunks"] + grant["tx_chunks"]
        self.memory = mmap.mmap(memory, chunks * grant["chunk"])
        offsets = struct.unpack("16Q", self.socket.getsockopt(SOL_XDP, XDP_MMAP_OFFSETS, 128))
        self.offsets = dict(zip(("rx", "tx", "fill", "completion"), (offsets[at : at + 4] for at in range(0, 16, 4))))
        at = {"rx": RX_RING, "tx": TX_RING, "fill": FILL_RING, "completion": COMPLETION_RING}
        self.rings = {}
        for name, (_, _, entries, _) in self.offsets.items():
            width = 16 if name in ("rx", "tx") else 8
            octets = entries + grant["rings"][name] * width
            self.rings[name] = mmap.mmap(xdp, octets, offset=at[name])
        self.sent = 0

    def send(self, frame):
        place = (self.grant["rx_chunks"] + self.sent % 32) * self.grant["chunk"]
        self.memory[place : place + len(frame)] = frame
        ring, (producer, consumer, entries, _) = self.rings["tx"], self.offsets["tx"]
        at = entries + self.sent % self.grant["rings"]["tx"] * 16
        ring[at : at + 16] = struct.pack("QII", place, len(frame), 0)
        self.sent += 1
        ring[producer : producer + 4] = struct.pack("I", self.sent)
        while struct.unpack("I", ring[consumer : consumer + 4])[0] != self.sent:
            attempt(lambda: self.socket.send(b"", socket.MSG_DONTWAIT))
        completion, (producer, consumer, _, _) = self.rings["completion"], self.offsets["completion"]
        completion[consumer : consumer + 4] = completion[producer : producer + 4]

    def fill(self, frames):
        """Fills the transmit ring with frames, which are sent again and again from then on."""
        ring, entries, size = self.rings["tx"], self.offsets["tx"][2], self.grant["rings"]["tx"]
        for number in range(size):
            frame = frames[number % len(frames)]
            place = (self.grant["rx_chunks"] + number) * self.grant["chunk"]
            self.memory[place : place + len(frame)] = frame
            at = entries + number * 16
            ring[at : at + 16] = struct.pack("QII", place, len(frame), 0)

    def pour(self):
        """Sends as much as the ring takes."""
        ring, (producer, consumer, _, _) = self.rings["tx"], self.offsets["tx"]
        self.sent = struct.unpack("I", ring[consumer : consumer + 4])[0] + self.grant["rings"]["tx"]
        ring[producer : producer + 4] = struct.pack("I", self.sent & 0xFFFFFFFF)
        attempt(lambda: self.socket.send(b"", socket.MSG_DONTWAIT))
        completion, (producer, consumer, _, _) = self.rings["completion"], self.offsets["completion"]
        completion[consumer : consumer + 4] = completion[producer : producer + 4]

    def taken(self):
        """Returns how many frames the kernel has taken from the transmit ring."""
        consumer = self.offsets["tx"][1]
        return struct.unpack("I", self.rings["tx"][consumer : consumer + 4])[0]

    def scribble(self, rounds):
        for _ in range(rounds):
            name = random.choice(list(self.rings))
            ring = self.rings[name]
            for _ in range(random.randrange(1, 64)):
                ring[random.randrange(len(ring))] = random.randrange(256)
            at = random.randrange(len(self.memory) - 4096)
            self.memory[at : at + 4096] = random.randbytes(4096)
            attempt(lambda: self.socket.send(b"", socket.MSG_DONTWAIT))
            attempt(lambda: self.socket.recv(1, socket.MSG_DONTWAIT))


def ipv4(source, destination, protocol, payload, fragment=0, options=b""):
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45 + len(options) // 4, 0, 20 + len(options) + len(payload), 1, fragment, 64, protocol, 0,
        socket.inet_aton(source), socket.inet_aton(destination),
    ) + options
    total = sum(struct.unpack("!%dH" % (len(header) // 2), header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return header[:10] + struct.pack("!H", ~total & 0xFFFF) + header[12:] + payload


def tcp(source, destination):
    return struct.pack("!HHIIBBHHH", source, destination, 1, 0, 5 << 4, 2, 1000, 0, 0)


def specimens(own_mac, peer_mac):
    """One frame of each kind. The first one may be sent, the others may not."""
    own, peer = (bytes.fromhex(mac.replace(":", "")) for mac in (own_mac, peer_mac))
    ip, arp = b"\x08\x00", b"\x08\x06"
    segment = tcp(SOURCE_PORT, 4421)
    good = ipv4(NEAR, FAR, 6, segment)
    return [
        peer + own + ip + good,  # to_nic
        peer + bytes([2, 1, 2, 3, 4, 5]) + ip + good,  # source_mac
        peer + own + b"\x81\x00\x00\x09" + ip + good,  # source_mac, of that VLAN
        peer + own + ip + ipv4("10.9.0.77", FAR, 6, segment),  # source
        peer + own + ip + ipv4(NEAR, FAR, 6, tcp(SOURCE_PORT + 1, 4421)),  # not_leased
        peer + own + ip + ipv4(NEAR, NEAR, 6, tcp(SOURCE_PORT, 5999)),  # nobody
        peer + own + ip + ipv4(NEAR, "224.0.0.1", 6, segment),  # destination
        peer + own + ip + ipv4(NEAR, FAR, 17, struct.pack("!HHHH", SOURCE_PORT, 53, 8, 0)),  # not_tcp
        peer + own + arp + struct.pack("!HHBBH", 1, 0x800, 6, 4, 2) + own + socket.inet_aton(FAR) + peer + socket.inet_aton(NEAR),  # not_tcp
        peer + own + ip + ipv4(NEAR, FAR, 6, segment, fragment=0x2000),  # fragment
        peer + own + ip + ipv4(NEAR, FAR, 6, segment, options=b"\x01\x01\x01\x01"),  # options
        b"\xff" * 6 + own + ip + good,  # group
        b"\x01\x00\x5e\x00\x00\x01" + own + ip + good,  # group
        peer + own + ip + good[:20],  # truncated
        peer + own + ip + good[:2] + b"\x05\xdc" + good[4:],  # length
        peer + own + ip + good + b"hidden behind it",  # length
        peer + own + b"\x81\x00\xe0\x00" + ip + good,  # priority
        peer + own + ip + good[:1] + b"\xb8" + good[2:],  # priority
        peer + own + ip + good[:8] + b"\x00" + good[9:],  # destination: no hop left
        peer + own + ip + ipv4(NEAR, "10.9.0.255", 6, segment),  # destination: broadcast
        peer + own + ip + ipv4(NEAR, "240.0.0.1", 6, segment),  # destination
        b"\x02\x77\x77\x77\x77\x77" + own + ip + good,  # next_hop
    ]
