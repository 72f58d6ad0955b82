"""Stands between two hosts in place of a switch, and loses some of the frames that they send.

netem on a veth cannot do it: what AF_XDP sends passes its queueing discipline by.

    python3 lossy.py SHARE INTERFACE INTERFACE      in the network namespace; SHARE: 0.01 is 1 %

The first FIN of each TCP connection and direction is lost in any case: by SHARE alone one among
thousands of frames would seldom be, and who sends it may be gone before it can be sent again.

Prints "forwarding", and the number of lost frames each time it grows by ten.
"""

import random
import select
import socket
import sys

ETH_P_ALL, PACKET_OUTGOING = 3, 4
# Bursts wait while the machine is busy.
RECEIVE_BUFFER = 64 << 20
SO_RCVBUFFORCE = 33


class Fins:
    """Finds the first FIN in each direction of a TCP connection over IPv4."""

    def __init__(self):
        self._seen = set()

    def is_first(self, frame):
        if frame[12:14] != b"\x08\0" or frame[23] != socket.IPPROTO_TCP or not frame[47] & 1:
            return False
        ends = frame[26:38]
        is_new = ends not in self._seen
        self._seen.add(ends)
        return is_new


def forward(share, interfaces):
    chance = random.Random(1)
    ports = []
    for interface in interfaces:
        port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
        port.bind((interface, ETH_P_ALL))
        ports.append(port)
    others = dict(zip(ports, reversed(ports)))
    lost, fins = 0, Fins()
    print("forwarding", flush=True)
    while True:
        for port in select.select(ports, [], [])[0]:
            frame, address = port.recvfrom(65536)
            if address[2] == PACKET_OUTGOING:
                continue
            if chance.random() >= share and not fins.is_first(frame):
                others[port].send(frame)
                continue
            lost += 1
            if lost % 10 == 0:
                print(lost, flush=True)


if __name__ == "__main__":
    forward(float(sys.argv[1]), sys.argv[2:])
