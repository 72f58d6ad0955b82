#!/usr/bin/env python3
"""An iWARP peer over an ordinary kernel TCP socket: MPA, DDP and RDMAP straight from the RFC
figures.

It speaks the protocol of rping in either role, so that rnic's rping can be tested against the
kernel's TCP and against an encoder and decoder that share no code with it.

    kernel_peer.py client ADDRESS PORT COUNT SIZE [PAYLOAD]
    kernel_peer.py server ADDRESS PORT COUNT SIZE [PAYLOAD]

PAYLOAD: octets in a DDP segment; 1300 fit any MTU of 1500.
"""

import random
import socket
import struct
import sys

WRITE, READ_REQUEST, READ_RESPONSE, SEND, TERMINATE = 0, 1, 2, 3, 7
TAGGED, LAST = 0x80, 0x40
PAYLOAD = int(sys.argv[6]) if len(sys.argv) > 6 else 1300


def make_table():
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        yield n


TABLE = list(make_table())


def crc32c(octets):
    crc = 0xFFFFFFFF
    for octet in octets:
        crc = TABLE[(crc ^ octet) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


class Peer:
    """One connection. Memory that the other side may reach is one bytearray per STag, addressed
    from zero."""

    def __init__(self, connection):
        self.connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.memory = {}
        self.next_msn = {0: 1, 1: 1, 2: 1}
        self.expected_msn = {0: 1, 1: 1, 2: 1}
        self.partial = {0: b"", 1: b"", 2: b""}
        self.read_done = True

    def read_exactly(self, count):
        octets = b""
        while len(octets) < count:
            more = self.connection.recv(count - len(octets))
            if not more:
                raise EOFError(f"the stream ended after {len(octets)} of {count} octets")
            octets += more
        return octets

    # MPA: RFC 5044 sections 4 and 7, RFC 6581 section 9 (IRD and ORD in front of the private data)

    def start(self, key, private):
        body = struct.pack(">HH", 16, 16) + private
        return key + struct.pack(">BBH", 0x40 | 0x10, 2, len(body)) + body

    def expect_start(self, key):
        frame = self.read_exactly(20)
        assert frame[:16] == key, frame
        flags, revision, length = struct.unpack(">BBH", frame[16:])
        assert revision == 2 and flags & 0x40 and flags & 0x10 and not flags & 0xA0, frame
        body = self.read_exactly(length)
        ird, ord_ = struct.unpack(">HH", body[:4])
        assert ird & 0x3FFF and ord_ & 0x3FFF, body
        return body[4:]

    def connect(self):
        self.connection.sendall(self.start(b"MPA ID Req Frame", b"from the kernel's TCP"))
        self.expect_start(b"MPA ID Rep Frame")

    def accept(self):
        self.expect_start(b"MPA ID Req Frame")
        self.connection.sendall(self.start(b"MPA ID Rep Frame", b""))

    def send_fpdu(self, ulpdu):
        fpdu = struct.pack(">H", len(ulpdu)) + ulpdu
        fpdu += bytes(-len(fpdu) % 4)
        fpdu += struct.pack("<I", crc32c(fpdu))
        # Cut anywhere: a receiver must not depend on where TCP cuts the stream.
        at = random.randrange(1, len(fpdu))
        self.connection.sendall(fpdu[:at])
        self.connection.sendall(fpdu[at:])

    def receive_fpdu(self):
        head = self.read_exactly(2)
        (length,) = struct.unpack(">H", head)
        rest = self.read_exactly(length + -(length + 2) % 4)
        (crc,) = struct.unpack("<I", self.read_exactly(4))
        assert crc == crc32c(head + rest), "bad CRC"
        return rest[:length]

    # DDP: RFC 5041 section 4

    def send_untagged(self, opcode, queue, message):
        msn = self.next_msn[queue]
        self.next_msn[queue] = msn + 1
        for at in range(0, max(len(message), 1), PAYLOAD):
            piece = message[at : at + PAYLOAD]
            last = LAST if at + PAYLOAD >= len(message) else 0
            header = struct.pack(">BBIIII", last | 1, 0x40 | opcode, 0, queue, msn, at)
            self.send_fpdu(header + piece)

    def send_tagged(self, opcode, stag, offset, message):
        for at in range(0, max(len(message), 1), PAYLOAD):
            piece = message[at : at + PAYLOAD]
            last = LAST if at + PAYLOAD >= len(message) else 0
            header = struct.pack(">BBIQ", TAGGED | last | 1, 0x40 | opcode, stag, offset + at)
            self.send_fpdu(header + piece)

    def serve_until_send(self):
        """Obeys the other side until a Send is complete, and returns it."""
        while True:
            message = self.handle(self.receive_fpdu())
            if message is not None:
                return message

    def handle(self, ulpdu):
        control, rdmap = ulpdu[0], ulpdu[1]
        assert control & 3 == 1 and rdmap >> 6 == 1, ulpdu[:18]
        opcode = rdmap & 15
        if control & TAGGED:
            stag, offset = struct.unpack(">IQ", ulpdu[2:14])
            data = ulpdu[14:]
            assert opcode in (WRITE, READ_RESPONSE), opcode
            region = self.memory[stag]
            assert offset + len(data) <= len(region), (offset, len(data))
            region[offset : offset + len(data)] = data
            self.read_done |= opcode == READ_RESPONSE and bool(control & LAST)
            return None
        _, queue, msn, offset = struct.unpack(">IIII", ulpdu[2:18])
        assert opcode != TERMINATE, f"Terminate: {ulpdu[18:].hex()}"
        assert msn == self.expected_msn[queue], (queue, msn)
        assert offset == len(self.partial[queue]), offset
        self.partial[queue] += ulpdu[18:]
        if not control & LAST:
            return None
        self.expected_msn[queue] += 1
        message, self.partial[queue] = self.partial[queue], b""
        if opcode == SEND:
            return message
        assert (opcode, queue) == (READ_REQUEST, 1), (opcode, queue)
        sink, to, size, source, start = struct.unpack(">IQIIQ", message)
        assert start + size <= len(self.memory[source])
        self.send_tagged(READ_RESPONSE, sink, to, bytes(self.memory[source][start : start + size]))
        return None

    def read(self, stag, offset, size, sink):
        self.read_done = False
        request = struct.pack(">IQIIQ", sink, 0, size, stag, offset)
        self.send_untagged(READ_REQUEST, 1, request)
        while not self.read_done:
            assert self.handle(self.receive_fpdu()) is None, "a Send came before the Read Response"


def run_client(peer, count, size):
    source, sink = 0x1234AB, 0x5678CD
    for number in range(count):
        # As rping's: printable, with a NUL at the end, up to which its server writes the text back.
        letters = bytes(random.randrange(33, 127) for _ in range(size))
        text = (f"rdma-ping-{number}: ".encode() + letters)[: size - 1] + bytes(1)
        peer.memory = {source: bytearray(text), sink: bytearray(size)}
        peer.send_untagged(SEND, 0, struct.pack(">QII", 0, source, size))
        peer.serve_until_send()
        peer.send_untagged(SEND, 0, struct.pack(">QII", 0, sink, size))
        peer.serve_until_send()
        assert peer.memory[sink] == text, "the octets that came back are not those that went"


def run_server(peer, count, size):
    sink = 0xABCDEF
    for _ in range(count):
        address, stag, length = struct.unpack(">QII", peer.serve_until_send())
        assert length == size, (length, size)
        peer.memory = {sink: bytearray(size)}
        peer.read(stag, address, size, sink)
        peer.send_untagged(SEND, 0, bytes(16))
        address, stag, length = struct.unpack(">QII", peer.serve_until_send())
        peer.send_tagged(WRITE, stag, address, bytes(peer.memory[sink]))
        peer.send_untagged(SEND, 0, bytes(16))


def main():
    role, address, port, count, size = sys.argv[1:6]
    place, count, size = (address, int(port)), int(count), int(size)
    random.seed(7)
    if role == "client":
        connection = socket.create_connection(place, timeout=20)
        peer = Peer(connection)
        peer.connect()
        run_client(peer, count, size)
    else:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server(place, family=family)
        print("listening", flush=True)
        connection, _ = listener.accept()
        connection.settimeout(20)
        peer = Peer(connection)
        peer.accept()
        run_server(peer, count, size)
        # The client closes; what it sends until then is only FIN.
        assert connection.recv(1) == b"", "octets after the last round"
    connection.close()
    print(f"{role}: {count} rounds of {size} octets")


if __name__ == "__main__":
    main()
