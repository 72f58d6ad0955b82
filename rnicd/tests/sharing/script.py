"""A client of rnicd without any of rnic's code, which may mean harm. It does what it is told line by line, and answers
each. `rings.py` comes before it in the same text."""

import array
import ctypes
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys

TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ, SO_DETACH_FILTER = 19, 20, 21, 27
MOST_MESSAGE = 64 << 10

LINES = open(0, "rb", buffering=0)  # unbuffered, so that select sees each line
HELD = []  # what must stay open


def connect():
    there = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        there.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 60, 0))
    there.connect(os.environ["RNICD_SOCKET"])
    return there


class Connection:
    """A connection that keeps to the protocol."""

    def __init__(self):
        self.socket, self.last = connect(), 0
        assert self.ask("hello", version=1, program="script")[0]["type"] == "welcome"

    def tell(self, kind, **fields):
        self.last += 1
        self.socket.send(json.dumps({"id": self.last, "type": kind, **fields}).encode())

    def ask(self, kind, **fields):
        """Returns an answer and its descriptors."""
        self.tell(kind, **fields)
        while True:
            octets, descriptors, _, _ = socket.recv_fds(self.socket, MOST_MESSAGE, 4)
            assert octets, "rnicd has closed the connection"
            answer = json.loads(octets)
            if answer.get("id") == self.last:
                return answer, descriptors

    def open_port(self):
        answer, descriptors = self.ask("open_port", netdev=NETDEV, rx_frames=64, tx_frames=128, tx_ring=64)
        assert answer["type"] == "port", answer
        return answer, descriptors


def reply(answer):
    print("\n> " + answer.replace("\n", " "), flush=True)


def until_next_line():
    """Says that something has begun which goes on until the next line comes: a generator that ends then."""
    reply("ok begun")
    while not select.select([LINES], [], [], 0)[0]:
        yield


def garbage(seed, count):
    """Datagrams that are no messages, each on a connection of its own."""
    random.seed(int(seed))
    for _ in range(int(count)):
        spoil()


def garbage_on():
    """Garbage until the next line comes. Returns on how many connections."""
    count = 0
    for _ in until_next_line():
        spoil()
        count += 1
    return count


def spoil():
    """Some datagrams that are no messages, on a connection of their own."""
    good = [
        b'{"id":1,"type":"hello","version":1,"program":"script"}',
        b'{"id":2,"type":"open_port","netdev":"nic","rx_frames":64,"tx_frames":128,"tx_ring":64}',
        b'{"id":3,"type":"adopt","port":1,"token":"00112233445566778899aabbccddeeff","leases":[]}',
        b'{"id":4,"type":"listen","port":1,"local":"10.9.0.1:5000","peers":null}',
    ]
    there = connect()
    there.setblocking(False)
    for _ in range(random.randrange(4)):
        octets = bytearray(random.choice(good))
        way = random.randrange(6)
        if way == 0:
            octets = octets[: random.randrange(len(octets))]
        elif way == 1:
            octets[random.randrange(len(octets))] = random.randrange(256)
        elif way == 2:
            octets = bytearray(random.randbytes(random.randrange(2000)))
        elif way == 3:
            octets = bytearray(b'{"id":' + b"[" * random.randrange(1000, 60000))
        rights = [sys.stdin.fileno()] * random.randrange(1, 20) if way == 4 else []
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", rights))] if rights else []
        try:
            there.sendmsg([octets], control)
        except OSError:
            return  # closed for what came before
    there.close()


def crowd(count):
    """Connections that say nothing. Returns how many are not closed at once."""
    made = []
    for _ in range(int(count)):
        made.append(connect())
    HELD.extend(made)
    # An answer to the last one shows that rnicd has been through all of them.
    try:
        Connection()
    except (AssertionError, OSError):
        pass
    for one in made:
        one.setblocking(False)
    return sum(is_open(one) for one in made)


def stand_in_line(count):
    """Connections that rnicd need not have accepted."""
    HELD.extend([connect() for _ in range(int(count))])


def is_open(one):
    try:
        return bool(one.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def disperse():
    HELD.clear()


def refusals(port):
    """Asks for what is another's. Returns the kinds of the answers."""
    rude = connect()
    rude.send(json.dumps({"id": 1, "type": "open_port", "netdev": "nic", "rx_frames": 64, "tx_frames": 128, "tx_ring": 64}).encode())
    kinds = [json.loads(rude.recv(MOST_MESSAGE))["type"]]
    there, port = Connection(), int(port)
    local = "10.9.0.1:5000"
    for kind, fields in [
        ("adopt", {"token": "0" * 32, "leases": []}),
        ("adopt", {"token": "%032x" % random.getrandbits(128), "leases": []}),
        ("listen", {"local": local, "peers": None}),
        ("connect", {"remote": "10.9.0.2:4420", "local": None}),
        ("release", {"local": local}),
        ("follow", {"destination": "10.9.0.2"}),
        ("forget", {"destination": "10.9.0.2"}),
    ]:
        kinds.append(there.ask(kind, port=port, **fields)[0]["type"])
    return " ".join(kinds)


def administer():
    """Asks for what only root may. Returns the reasons of the refusals."""
    there = Connection()
    changes = [{"key": "rate", "value": "none"}]
    reasons = []
    for kind, fields in [
        ("add_device", {"netdev": "lo"}),
        ("remove_device", {"netdev": "nic", "force": True}),
        ("set_device", {"netdev": "nic", "changes": [{"key": "xdp_mode", "value": "generic"}], "force": True}),
        ("set_user", {"user": str(os.getuid()), "changes": changes}),
        ("reset_user", {"user": "0"}),
    ]:
        reasons.append(there.ask(kind, **fields)[0].get("reason"))
    return " ".join(str(reason) for reason in reasons)


def leases(most):
    """Leases until it is refused, releases all, and does so again: the quota is whole again. Returns how many it had."""
    there = Connection()
    port = there.open_port()[0]["port"]
    counts = []
    for _ in range(3):
        had = []
        while len(had) <= int(most):
            answer, descriptors = there.ask("listen", port=port, local="10.9.0.1:0", peers=None)
            if answer["type"] == "refused":
                assert answer["reason"] == "quota", answer
                break
            had.append((answer["local"], descriptors))
        counts.append(len(had))
        for local, descriptors in had:
            there.ask("release", port=port, local=local)
            for descriptor in descriptors:
                os.close(descriptor)
    return " ".join(map(str, counts))


def leases_on():
    """Leases and releases until the next line comes. Returns how often."""
    there, count = Connection(), 0
    port = there.open_port()[0]["port"]
    for _ in until_next_line():
        answer, descriptors = there.ask("listen", port=port, local=NEAR + ":0", peers=None)
        assert answer["type"] == "lease", answer
        there.ask("release", port=port, local=answer["local"])
        for descriptor in descriptors:
            os.close(descriptor)
        count += 1
    return count


def lease_two():
    """Leases two TCP ports, and keeps the port for coming back."""
    there = Connection()
    grant, descriptors = there.open_port()
    for local in ("10.9.0.1:5000", "10.9.0.1:5001"):
        descriptors += there.ask("listen", port=grant["port"], local=local, peers=None)[1]
    HELD.append((grant, descriptors))


def come_back():
    """Connects again, and says that it has only one of the two: it never got the other."""
    grant, _ = HELD[-1]
    there = Connection()
    HELD.append(there)
    answer, _ = there.ask("adopt", port=grant["port"], token=grant["token"], leases=["10.9.0.1:5001"])
    return answer["type"]


def follow(destination):
    """Follows the next hop to a destination."""
    there = Connection()
    port = there.open_port()
    there.tell("follow", port=port[0]["port"], destination=destination)
    HELD.append((there, port))


def until_mtu(mtu):
    """Reads what rnicd reports of what is followed, until the next hop has this MTU."""
    there, _ = HELD[-1]
    while True:
        notice = json.loads(there.socket.recv(MOST_MESSAGE))
        if notice["type"] == "next_hop" and notice["hop"] and notice["hop"]["mtu"] == int(mtu):
            return


def flood(count):
    """Asks without reading any answer, until rnicd takes no more for a second. Returns how much it took of each kind."""
    taken = []
    for kind, fields in [
        ("follow", lambda n: {"destination": "10.%d.%d.%d" % (n >> 16 & 255, n >> 8 & 255, n & 255)}),
        ("listen", lambda n: {"local": "10.9.0.1:0", "peers": None}),
        ("hello", lambda n: {"version": 1, "program": "again"}),
    ]:
        there = Connection()
        port = there.open_port()
        there.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
        number = 0
        try:
            while number < int(count):
                there.tell(kind, port=port[0]["port"], **fields(number))
                number += 1
        except BlockingIOError:
            pass
        taken.append(number)
        HELD.append((there, port))
    return " ".join(map(str, taken))


def open_one():
    """Opens a port. Returns its number."""
    there = Connection()
    port = there.open_port()
    HELD.append((there, port))
    return port[0]["port"]


def hang_up():
    """Closes the connection of the last port, and keeps the port."""
    there, _ = HELD[-1]
    there.socket.close()


def asked():
    """Waits until somebody asks what this client says of itself. Returns the socket for the answer."""
    there, _ = HELD[-1]
    while True:
        octets, descriptors, _, _ = socket.recv_fds(there.socket, MOST_MESSAGE, 4)
        if json.loads(octets)["type"] == "describe":
            return socket.socket(fileno=descriptors[0])


def ignore(count):
    """Takes so many questions, and answers none."""
    HELD.append((HELD[-1][0], [asked() for _ in range(int(count))]))


def forget():
    """Lets go of the questions."""
    for one in HELD.pop()[1]:
        one.close()


def pass_over():
    """Takes a question, and closes its socket, as a client does that knows none."""
    asked().close()


def say(text):
    """Answers a question with any text."""
    with asked() as one:
        one.sendall(bytes(text, "utf-8").decode("unicode_escape").encode("latin-1"))


def go_on():
    """Answers a question without an end. Returns whether it was made to stop."""
    with asked() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 60, 0))
        try:
            while True:
                one.sendall(b'{"type":"end_less"}\n' * 1000)
        except (BrokenPipeError, ConnectionResetError):
            return "stopped"


def inspect(port, what):
    """Asks what another client says of itself. Returns the kind of the answer."""
    return Connection().ask("inspect", port=int(port), what=what, within=100)[0]["type"]


def hand_over():
    """Gives a port to another process, and lets go of it. Returns the port and the process."""
    there = Connection()
    grant, (xdp, memory) = there.open_port()
    heir = subprocess.Popen(["sleep", "1000"], stdin=xdp, stdout=memory)
    for descriptor in (xdp, memory):
        os.close(descriptor)
    there.socket.close()
    return "%d %d" % (grant["port"], heir.pid)


def abuse(remote, local):
    """Tries to reach somebody with the sockets that reserve TCP ports. Returns which limits on them could be removed."""
    there = Connection()
    port = there.open_port()[0]["port"]
    host, service = remote.rsplit(":", 1)
    to, tcp, own = (host.strip("[]"), int(service)), socket.IPPROTO_TCP, socket.SOL_SOCKET
    freed = set()

    def reserve():
        answer, (descriptor,) = there.ask("listen", port=port, local=local, peers=None)
        assert answer["type"] == "lease", answer
        one = socket.socket(fileno=descriptor)
        one.setblocking(False)
        HELD.append((there, one))
        return one

    def remove_limits(one):
        for name, level, option, value in [
            ("repair", tcp, TCP_REPAIR, 0),
            ("repair", tcp, TCP_REPAIR, -1),
            ("filter", own, SO_DETACH_FILTER, 0),
            ("device", own, socket.SO_BINDTODEVICE, b"nic\0"),
            ("device", own, socket.SO_BINDTODEVICE, b"\0"),
        ]:
            try:
                one.setsockopt(level, option, value)
                freed.add(name)
            except OSError:
                pass

    def listen(one):
        one.listen(8)

    def send_early(one):
        attempt(lambda: one.send(b"hello"))
        one.sendto(b"hello", socket.MSG_FASTOPEN, to)

    def send(queue):
        def send(one):
            one.setsockopt(tcp, TCP_REPAIR_QUEUE, queue)
            attempt(lambda: one.setsockopt(tcp, TCP_QUEUE_SEQ, 1000))
            attempt(lambda: one.connect(to))
            one.send(b"hello")
            one.setsockopt(tcp, TCP_REPAIR_QUEUE, 0)
            one.send(b"hello")

        return send

    def end(one):
        one.setsockopt(tcp, TCP_REPAIR_QUEUE, 2)
        attempt(lambda: one.connect(to))
        one.send(b"hello")
        one.setsockopt(tcp, TCP_REPAIR_QUEUE, 0)
        one.shutdown(socket.SHUT_WR)

    def keep_alive(one):
        one.connect(to)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            one.setsockopt(tcp, option, 1)
        one.setsockopt(own, socket.SO_KEEPALIVE, 1)

    def disconnect(one):
        one.connect_ex(to)
        libc_address = b"\0" * 16  # AF_UNSPEC ends the connection
        ctypes.CDLL(None).connect(one.fileno(), libc_address, 16)
        one.connect(to)

    def close(one):
        attempt(lambda: one.connect(to))
        one.setsockopt(own, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()

    for way in (listen, send_early, send(1), send(2), end, keep_alive, disconnect, close):
        one = reserve()
        remove_limits(one)
        attempt(lambda: way(one))
    return " ".join(sorted(freed)) or "nothing"


def open_rings():
    """Opens a port with a lease. Returns its rings."""
    there = Connection()
    grant, descriptors = there.open_port()
    lease, reserved = there.ask("listen", port=grant["port"], local="%s:%d" % (NEAR, SOURCE_PORT), peers=None)
    assert lease["type"] == "lease", lease
    rings = Rings(grant, descriptors)
    HELD.append((there, rings, reserved))
    return rings


def frames(own_mac, peer_mac):
    """Sends one frame of each kind. Returns the port, whose counters say what became of them."""
    rings = open_rings()
    for frame in specimens(own_mac, peer_mac):
        rings.send(frame)
    return rings.grant["port"]


def deluge(kind, own_mac, peer_mac):
    """Sends valid or forged frames as fast as the kernel takes them, until the next line comes. Returns the port, and how many."""
    valid, *forged = specimens(own_mac, peer_mac)
    rings = open_rings()
    rings.fill({"valid": [valid], "forged": forged}[kind])
    for _ in until_next_line():
        rings.pour()
    return "%d %d" % (rings.grant["port"], rings.taken())


def fork(count):
    """Has so many children fill the rings and the memory of one port with garbage, all at once, until they are killed. Returns
    the port."""
    there = Connection()
    grant, descriptors = there.open_port()
    rings = Rings(grant, descriptors)
    HELD.append((there, rings))
    for _ in range(int(count)):
        child = os.fork()
        if child == 0:
            random.seed()
            while True:
                rings.scribble(1)
        HELD.append(child)
    return grant["port"]


def reap():
    """Kills the children, which must still run. Returns how many there were."""
    children = [held for held in HELD if isinstance(held, int)]
    for child in children:
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "a child has ended"
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(children)


def scribble(seed, rounds):
    """Fills the rings and the memory of a port with garbage."""
    random.seed(int(seed))
    there = Connection()
    grant, descriptors = there.open_port()
    rings = Rings(grant, descriptors)
    HELD.append((there, rings))
    rings.scribble(int(rounds))


COMMANDS = [garbage, crowd, stand_in_line, disperse, refusals, administer, leases, lease_two, come_back, follow, until_mtu, flood, open_one, hang_up, ignore, forget, pass_over, say, go_on, inspect, hand_over, abuse, frames, scribble, garbage_on, leases_on, deluge, fork, reap]

for line in iter(LINES.readline, b""):
    command, *words = line.decode().split()
    by_name = {known.__name__: known for known in COMMANDS}
    try:
        reply("ok %s" % (by_name[command](*words),))
    except Exception as error:  # what it does wrong is the test's to judge
        reply("error %s: %r" % (type(error).__name__, error))
