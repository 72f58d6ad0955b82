"""Stands between ours and siw in place of a switch, and changes fields of what one sends to the
other.


Neither siw nor rnic can be made to send protocol errors. So single fields of what they do send are
changed here, and CRC and checksum are corrected, so that the other side must detect the error by
the field itself.

    python3 mangle.py OURS-INTERFACE SIW-INTERFACE RULES      in the network namespace; RULES: a
                                                              JSON file

The rules are a list of lists: those of the first connection, of the second, and so on. Each one is
an object:

    from      "ours" or "siw"
    frame     "request" or "reply" of the MPA start-up, or "fpdu"

    opcode, payload    of an FPDU: RDMAP's opcode, and the octets behind DDP's header. The first
                       that matches is changed
    change    an object of fields with their new values; "msn+" and the like add to the old value

Prints "forwarding", and "changed ..." for each rule that was applied.
"""

import json
import select
import socket
import struct
import sys

ETH_P_ALL, PACKET_OUTGOING = 3, 4
# A frame lost here can be a RST, which nobody sends again: the other side would wait in vain.
# Bursts wait while the machine is busy.
RECEIVE_BUFFER = 64 << 20
SO_RCVBUFFORCE = 33
SYN, ACK = 0x02, 0x10
STARTUP_LEN = 20  # before the private data
# Of each field in a ULPDU: its offset, its octets, the mask of its bits, and their shift.
FIELDS = {
    "tagged": (0, 1, 0x80, 7), "last": (0, 1, 0x40, 6), "ddp-version": (0, 1, 0x03, 0),
    "rdmap-version": (1, 1, 0xc0, 6), "opcode": (1, 1, 0x0f, 0),
    "stag": (2, 4, 0xffffffff, 0), "tagged-offset": (6, 8, 0xffffffffffffffff, 0),
    "qn": (6, 4, 0xffffffff, 0), "msn": (10, 4, 0xffffffff, 0), "mo": (14, 4, 0xffffffff, 0),
    "read-size": (30, 4, 0xffffffff, 0), "payload": (18, 1, 0xff, 0),
}
# The same in the private data of a start-up frame of MPA revision 2.
DEPTHS = {"ird": (0, 2, 0x3fff, 0), "ord": (2, 2, 0x3fff, 0)}


def crc_table():
    for octet in range(256):
        for _ in range(8):
            octet = octet >> 1 ^ (0x82f63b78 if octet & 1 else 0)
        yield octet


TABLE = list(crc_table())


def crc32c(octets):
    value = 0xffffffff
    for octet in octets:
        value = value >> 8 ^ TABLE[(value ^ octet) & 0xff]
    return value ^ 0xffffffff


def put(octets, where, change, value):
    at, length, mask, shift = where
    word = int.from_bytes(octets[at:at + length], "big")
    field = (word & mask) >> shift
    field = field + value if change.endswith("+") else value
    octets[at:at + length] = (word & ~mask | field << shift & mask).to_bytes(length, "big")


def changed_fpdu(fpdu, change):
    """Returns a changed FPDU, with its length field, pad and CRC."""
    ulpdu = bytearray(fpdu[2:])
    uses_crc = any(fpdu[-4:])
    spoils = False
    length = fpdu[:2]
    for name, value in change.items():
        if name == "crc":
            spoils = True
        elif name == "length":
            length = struct.pack(">H", value)
        else:
            put(ulpdu, FIELDS[name.rstrip("+")], name, value)
    body = length + bytes(ulpdu[:-4])
    crc = struct.pack("<I", crc32c(body)) if uses_crc else bytes(4)
    return body + (bytes([crc[0] ^ 1]) + crc[1:] if spoils else crc)


def changed_startup(frame, change):
    depths = bytearray(frame[STARTUP_LEN:])
    for name, value in change.items():
        put(depths, DEPTHS[name], name, value)
    return frame[:STARTUP_LEN] + bytes(depths)


class Direction:
    """What one side sends in one connection. Its segments are taken in order only: TCP retransmits
    the others."""

    def __init__(self, rules, number):
        self._rules = rules
        self._number = number
        self._next = None
        self._startup = True
        self._begun = b""  # a frame that has come in part
        self._patches = []  # (sequence number, octets)

    def syn(self, seq):
        self._next = seq + 1 & 0xffffffff

    def pass_on(self, seq, payload):
        """Returns the payload to forward, or None."""
        if not payload or self._next is None:
            return payload
        ahead = (seq - self._next + 0x80000000 & 0xffffffff) - 0x80000000
        if ahead > 0:
            return None
        fresh = payload[-ahead:] if ahead else payload
        self._read(self._next, fresh)
        self._next = self._next + len(fresh) & 0xffffffff
        out = bytearray(payload)
        for start, octets in self._patches:
            at = (start - seq + 0x80000000 & 0xffffffff) - 0x80000000
            for i, octet in enumerate(octets):
                if 0 <= at + i < len(out):
                    out[at + i] = octet
        return bytes(out)

    def _read(self, seq, octets):
        """Finds the frames, and records the changes to those that are whole in this segment."""
        stream = self._begun + octets
        at = 0
        while (length := self._frame_length(stream[at:])) and at + length <= len(stream):
            frame = stream[at:at + length]
            offset = at - len(self._begun)
            # What has gone on in part cannot be changed any more.
            replacement = self._replacement(frame) if offset >= 0 else None
            if replacement:
                self._patches.append((seq + offset & 0xffffffff, replacement))
            self._startup = False
            at += length
        self._begun = stream[at:]

    def _frame_length(self, octets):
        if self._startup:
            return octets[18] * 256 + octets[19] + STARTUP_LEN if len(octets) >= STARTUP_LEN else 0
        return (octets[0] * 256 + octets[1] + 2 + 3 & ~3) + 4 if len(octets) >= 2 else 0

    def _replacement(self, frame):
        for rule in self._rules:
            if not matches(rule, frame, self._startup):
                continue
            self._rules.remove(rule)
            print(f"changed {self._number}: {json.dumps(rule)}", flush=True)
            change = changed_startup if self._startup else changed_fpdu
            return change(frame, rule["change"])
        return None


def matches(rule, frame, startup):
    if startup:
        return rule["frame"] == ("request" if frame[:16] == b"MPA ID Req Frame" else "reply")
    header = 14 if frame[2] & 0x80 else 18
    payload = frame[0] * 256 + frame[1] - header
    return rule["frame"] == "fpdu" and rule["opcode"] == frame[3] & 15 and rule.get("payload", payload) == payload


def checksum(octets):
    total = sum(struct.unpack(f">{len(octets) // 2}H", octets[:len(octets) & ~1]))
    if len(octets) & 1:
        total += octets[-1] << 8
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


class Mangler:
    def __init__(self, rules):
        self._rules = rules
        self._count = 0
        self._connections = {}  # of the two ports: the directions
        self._begins = {}  # of the two ports: the sequence number of the SYN

    def pass_on(self, side, frame):
        """Returns the frame to forward, or None."""
        if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
            return frame
        ip = 14
        tcp = ip + (frame[ip] & 15) * 4
        end = ip + int.from_bytes(frame[ip + 2:ip + 4], "big")
        data = tcp + (frame[tcp + 12] >> 4) * 4
        seq, flags = int.from_bytes(frame[tcp + 4:tcp + 8], "big"), frame[tcp + 13]
        ports = frozenset((frame[tcp:tcp + 2], frame[tcp + 2:tcp + 4]))
        # A port may be used again, with another sequence number.
        if flags & (SYN | ACK) == SYN and self._begins.get(ports) != seq:
            number, self._begins[ports] = self._count, seq
            self._count += 1
            rules = self._rules[number] if number < len(self._rules) else []
            self._connections[ports] = {
                name: Direction([rule for rule in rules if rule["from"] == name], number) for name in ("ours", "siw")}
        if ports not in self._connections:
            return frame
        direction = self._connections[ports][side]
        if flags & SYN:
            direction.syn(seq)
            return frame
        payload = direction.pass_on(seq, frame[data:end])
        if payload is None or payload == frame[data:end]:
            return payload if payload is None else frame
        segment = bytearray(frame[tcp:data] + payload)
        segment[16:18] = bytes(2)
        pseudo = frame[ip + 12:ip + 20] + struct.pack(">HH", socket.IPPROTO_TCP, len(segment))
        segment[16:18] = struct.pack(">H", checksum(pseudo + bytes(segment)))
        return frame[:tcp] + bytes(segment)


def forward(ours, theirs, rules):
    mangler = Mangler(rules)
    ports = {}
    for side, interface in (("ours", ours), ("siw", theirs)):
        port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
        port.bind((interface, ETH_P_ALL))
        ports[port] = side
    print("forwarding", flush=True)
    while True:
        for port in select.select(list(ports), [], [])[0]:
            frame, address = port.recvfrom(65536)
            if address[2] == PACKET_OUTGOING:
                continue
            out = mangler.pass_on(ports[port], frame)
            if out is not None:
                [other] = [each for each in ports if each is not port]
                other.send(out)


if __name__ == "__main__":
    with open(sys.argv[3]) as file:
        forward(sys.argv[1], sys.argv[2], json.load(file))
