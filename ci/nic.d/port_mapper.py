"""iwpmd of rdma-core runs on the same host, and has the UDP port of port mappers: it is told of our
listeners."""

import contextlib

from nic import WEST
from nic_cases import CTL, case, expect

NUMBER = 7500
ACCEPT, REJECT = 1, 3
RNIC = CTL.with_name("rnic")
TCP = f"""import socket
listener = socket.create_server(("{WEST}", {NUMBER}))
print("listening", flush=True)
while True:
    print("connected:", listener.accept()[1], flush=True)"""
# A Request of a peer, again and again: the NIC has no carrier for a while when it gets a program.
# Prints the kind of the answer, and the TCP port.
ASK = f"""import socket
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(1)
address = socket.inet_aton("{WEST}").ljust(16, bytes(1))
request = bytes([4, 0, 0, 0]) + ({NUMBER}).to_bytes(2, "big") + bytes(10) + address * 3
for _ in range(40):
    asking.sendto(request, ("{WEST}", 3935))
    try:
        answer = asking.recv(100)
        break
    except TimeoutError:
        pass
print(answer[0] >> 4, int.from_bytes(answer[4:6], "big"))"""


@contextlib.contextmanager
def iwpmd(nics):
    """Runs it, in the guest's first network namespace, where the west's NIC is then: in another one the
    kernel does not speak with it, and it is one of an older version."""
    guest = nics.bed.guest
    guest.run(f"""set -e
        ip -n west link set dev nic1 netns 1
        ip address add {WEST}/24 dev nic1
        ip link set dev nic1 up
        iwpmd
        for i in $(seq 100); do pidof iwpmd && exit; sleep 0.1; done
        exit 1""").checked()
    nics.wait_for_carrier()
    try:
        yield guest
    finally:
        guest.run("kill $(pidof iwpmd)")
        nics.bed.bind_again("west")


def asked(nics):
    """What the mapper says of the listener: the kind of its answer, and the TCP port."""
    return tuple(map(int, nics.east(f"exec python3 -c '{ASK}'").checked().split()))


@case("the port mapper beside iwpmd", kinds=("igb",))
def _(nics):
    with iwpmd(nics) as west:
        expect(asked(nics)[0] == REJECT, "iwpmd knows a listener that is not there")
        tcp = west.spawn(f"exec python3 -c '{TCP}'", 120)
        nics.wait(lambda: "listening" in tcp.output(), "a TCP socket listens")
        options = f"-v -V -C 3 -a {WEST} -p {NUMBER}"
        server = west.spawn(f"exec {RNIC} run --netdev nic1 rping -s {options}", 120)
        nics.wait(lambda: not server.running() or asked(nics)[0] == ACCEPT, "iwpmd knows the listener", 60)
        expect(server.running(), "rping ended early:", server.output())
        kind, port = asked(nics)
        expect(kind == ACCEPT and port != NUMBER, "iwpmd does not tell another port:", kind, port)
        nics.wait_for_carrier()
        client = nics.east(f"exec {RNIC} run --netdev nic0 rping -c {options}", 60)
        served = server.wait()
        expect(client.code == 0 and served.code == 0, "rping failed:", client.output, served.output)
        expect("ping data: rdma-ping-2" in client.output, "the client got no answer:", client.output)
        expect("connected" not in tcp.output(), "the TCP socket got a connection:", tcp.output())
        expect(asked(nics)[0] == REJECT, "iwpmd still knows a listener that has ended")
        tcp.kill()
