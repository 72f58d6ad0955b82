#!/usr/bin/env python3
"""Tests that ci/tcp-check finds each kind of fault by itself, and none in right traffic.

Each case is a short conversation, written to a capture with a checksum of its own making.
"""

import pathlib
import socket
import struct
import subprocess
import sys
import tempfile

CHECK = pathlib.Path(__file__).resolve().parent.parent / "tcp-check"
OURS, PEER = "10.77.20.1", "10.77.20.2"
FIN, SYN, PSH, ACK = 1, 2, 8, 16
ISN, PEER_ISN = 0xFFFF_FF00, 7000


def ones_complement(octets):
    octets += b"\0" * (len(octets) % 2)
    total = sum(struct.unpack(f"!{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


class Talk:
    """A connection that has been opened. Offsets count from the SYN, which is 0."""

    def __init__(self):
        self.frames, self.clock, self.stamps = [], 0, {True: 1000, False: 5000}
        self.say(True, 0, 0, SYN)
        self.say(False, 0, 1, SYN | ACK)
        self.say(True, 1, 1)

    def say(self, ours, seq, ack, flags=ACK, data=b"", window=10_000, sacks=(), tsval=None, tsecr=None, spoil=None):
        self.clock += 10_000
        self.stamps[ours] += 10
        tsval = self.stamps[ours] if tsval is None else tsval
        tsecr = self.stamps[not ours] if tsecr is None else tsecr
        numbers = [(ISN, PEER_ISN), (PEER_ISN, ISN)][not ours]
        seq, ack = (seq + numbers[0]) % 2**32, (ack + numbers[1]) % 2**32
        options = struct.pack("!BBBBII", 1, 1, 8, 10, tsval, tsecr)
        if sacks:
            other = numbers[1]
            edges = [(edge + other) % 2**32 for block in sacks for edge in block]
            options += struct.pack(f"!BBBB{len(edges)}I", 1, 1, 5, 2 + 4 * len(edges), *edges)
        header = 20 + len(options)
        tcp = struct.pack("!HHIIBBHHH", *((1, 2) if ours else (2, 1)), seq, ack, header // 4 << 4, flags, window, 0, 0)
        tcp = bytearray(tcp + options + data)
        addresses = b"".join(map(socket.inet_aton, (OURS, PEER) if ours else (PEER, OURS)))
        struct.pack_into("!H", tcp, 16, ones_complement(addresses + struct.pack("!HH", 6, len(tcp)) + bytes(tcp)))
        if spoil:
            spoil(tcp)
        ip = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + addresses)
        struct.pack_into("!H", ip, 10, ones_complement(bytes(ip)))
        self.frames.append((self.clock, b"\2" * 6 + b"\4" * 6 + b"\x08\0" + bytes(ip) + bytes(tcp)))

    def write(self, path):
        with open(path, "wb") as file:
            file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
            for time, frame in self.frames:
                file.write(struct.pack("<IIII", time // 1_000_000, time % 1_000_000, len(frame), len(frame)) + frame)


def ordinary(talk):
    """Data both ways, one segment lost, one probe of a closed window."""
    for start in (1, 1001, 2001):
        talk.say(True, start, 1, data=b"x" * 1000)
    talk.say(False, 1, 1, sacks=[(1001, 3001)])
    talk.say(True, 1, 1, data=b"x" * 1000)
    talk.say(False, 1, 3001, PSH | ACK, data=b"y" * 500, window=0)
    talk.say(True, 3001, 501, data=b"x")
    talk.say(False, 501, 3001)
    talk.say(True, 3001, 501, FIN | ACK)


def checksum(talk):
    def spoil(tcp):
        tcp[-1] ^= 1

    talk.say(True, 1, 1, data=b"x" * 10, spoil=spoil)


def malformed(talk):
    def spoil(tcp):
        tcp[20:22] = b"\x08\x03"

    talk.say(True, 1, 1, spoil=spoil)


def beyond_window(talk):
    talk.say(False, 1, 1, window=999)
    # The larger window of the SYN-ACK stays advertised.
    for start in range(1, 10_001, 1000):
        talk.say(True, start, 1, data=b"x" * 1000)
    talk.say(True, 10_001, 1, data=b"x" * 2)


def needless(talk):
    talk.say(True, 1, 1, data=b"x" * 1000)
    talk.say(True, 1001, 1, data=b"x" * 1000)
    talk.say(False, 1, 1, sacks=[(1001, 2001)])
    talk.say(False, 1, 1, sacks=[(1001, 2001)])
    talk.say(True, 1001, 1, data=b"x" * 1000)


def acknowledged_before(talk):
    talk.say(False, 501, 1, data=b"y" * 500)
    talk.say(True, 1, 1001)


def sacked_before(talk):
    talk.say(False, 501, 1, data=b"y" * 500)
    talk.say(True, 1, 1, sacks=[(501, 1501)])


def edge(talk):
    talk.say(True, 1, 1, window=9_999)


def stamp(talk):
    talk.say(True, 1, 1, tsval=1000)


CASES = {
    ordinary: None,
    checksum: "its status is",
    malformed: "malformed",
    beyond_window: "2 octets beyond the window",
    needless: "sends 1001..2001 again, which SACK had covered",
    acknowledged_before: "acknowledges 1001, which has not arrived",
    sacked_before: "SACK of (501, 1501), which has not arrived",
    edge: "right edge moves back by 1",
    stamp: "timestamp 1000 follows",
}


def main():
    wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        for case, complaint in CASES.items():
            talk, path = Talk(), pathlib.Path(directory, f"{case.__name__}.pcap")
            case(talk)
            talk.write(path)
            ran = subprocess.run([CHECK, "--ours", OURS, path], stdout=subprocess.PIPE, text=True, check=False)
            breaches = 0 if complaint is None else 1
            if ran.returncode != breaches or f" {breaches} breaches" not in ran.stdout or (complaint or "") not in ran.stdout:
                print(f"{case.__name__}: expected {complaint or 'no complaint'}, got code {ran.returncode}\n{ran.stdout}")
                wrong += 1
    print(f"ci/tcp-check: {len(CASES) - wrong} of {len(CASES)} cases are judged right")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
