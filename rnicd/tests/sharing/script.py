"""A client of rnicd without any of rnic's code, which may mean harm. It does what it is told line
by line, and answers each. `rings.py` comes before it in the same text."""

import array
import ctypes
import json
import mmap
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys

MAX_MESSAGE = 64 << 10

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
        assert self.ask("hello", version=2, program="script")[0]["type"] == "welcome"

    def tell(self, kind, **fields):
        self.last += 1
        self.socket.send(json.dumps({"id": self.last, "type": kind, **fields}).encode())

    def ask(self, kind, **fields):
        """Returns an answer and its descriptors."""
        self.tell(kind, **fields)
        while True:
            octets, descriptors, _, _ = socket.recv_fds(self.socket, MAX_MESSAGE, 4)
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
    """Reports that something has begun, and yields until the next line comes, which ends it."""
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
        b'{"id":1,"type":"hello","version":2,"program":"script"}',
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
    kinds = [json.loads(rude.recv(MAX_MESSAGE))["type"]]
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
    """Leases until it is refused, releases all, and does so again: the quota is whole again.
    Returns how many it had."""
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
            assert not descriptors
            had.append(answer["local"])
        counts.append(len(had))
        for local in had:
            there.ask("release", port=port, local=local)
    return " ".join(map(str, counts))


def leases_on():
    """Leases and releases until the next line comes. Returns how often."""
    there, count = Connection(), 0
    port = there.open_port()[0]["port"]
    for _ in until_next_line():
        answer, _ = there.ask("listen", port=port, local=NEAR + ":0", peers=None)
        assert answer["type"] == "lease", answer
        there.ask("release", port=port, local=answer["local"])
        count += 1
    return count


def lease_two():
    """Leases two TCP ports, and keeps the port for coming back."""
    there = Connection()
    grant, descriptors = there.open_port()
    for local in ("10.9.0.1:5000", "10.9.0.1:5001"):
        assert there.ask("listen", port=grant["port"], local=local, peers=None)[0]["type"] == "lease"
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
        notice = json.loads(there.socket.recv(MAX_MESSAGE))
        if notice["type"] == "next_hop" and notice["hop"] and notice["hop"]["mtu"] == int(mtu):
            return


def flood(count):
    """Asks without reading any answer, until rnicd takes no more for a second. Returns how much it
    took of each kind."""
    taken = []
    for kind, fields in [
        ("follow", lambda n: {"destination": "10.%d.%d.%d" % (n >> 16 & 255, n >> 8 & 255, n & 255)}),
        ("listen", lambda n: {"local": "10.9.0.1:0", "peers": None}),
        ("hello", lambda n: {"version": 2, "program": "again"}),
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
    """Waits until somebody asks what this client says of itself. Returns the pipe for the
    answer."""
    there, _ = HELD[-1]
    while True:
        octets, descriptors, _, _ = socket.recv_fds(there.socket, MAX_MESSAGE, 4)
        if json.loads(octets)["type"] == "describe":
            return open(descriptors[0], "wb", buffering=0)


def ignore(count):
    """Reads so many questions, and answers none."""
    HELD.append((HELD[-1][0], [asked() for _ in range(int(count))]))


def forget():
    """Lets go of the questions."""
    for one in HELD.pop()[1]:
        one.close()


def pass_over():
    """Reads a question, and closes its pipe, as a client does that knows none."""
    asked().close()


def say(text):
    """Answers a question with any text."""
    with asked() as one:
        one.write(bytes(text, "utf-8").decode("unicode_escape").encode("latin-1"))


def go_on():
    """Answers a question without an end. Returns whether it was made to stop."""
    with asked() as one:
        try:
            while True:
                one.write(b'{"type":"end_less"}\n' * 1000)
        except BrokenPipeError:
            return "stopped"


def inspect(port, what):
    """Asks what another client says of itself. Returns the kind of the answer."""
    return Connection().ask("inspect", port=int(port), what=what, within=100)[0]["type"]


def hand_over():
    """Hands a port to another process, and lets go of it. Returns the port and the process."""
    there = Connection()
    grant, (xdp, memory) = there.open_port()
    heir = subprocess.Popen(["sleep", "1000"], stdin=xdp, stdout=memory)
    for descriptor in (xdp, memory):
        os.close(descriptor)
    there.socket.close()
    return "%d %d" % (grant["port"], heir.pid)


def lease(local):
    """Leases a TCP port. Returns rnic's port, and how many descriptors came with the lease."""
    there = Connection()
    port = there.open_port()
    answer, descriptors = there.ask("listen", port=port[0]["port"], local=local, peers=None)
    assert answer["type"] == "lease", answer
    HELD.append((there, port))
    return "%d %d" % (port[0]["port"], len(descriptors))


def lease_again(local):
    """Leases a TCP port for the port of the last one."""
    there, port = HELD[-1]
    return there.ask("listen", port=port[0]["port"], local=local, peers=None)[0]["type"]


def release(local):
    """Releases a TCP port of the last port."""
    there, port = HELD[-1]
    return there.ask("release", port=port[0]["port"], local=local)[0]["type"]


def let_go():
    """Closes the connection and the socket of the last port, and keeps its memory, of which it has
    written to all pages."""
    there, (_, (xdp, memory)) = HELD.pop()
    octets = os.fstat(memory).st_size
    mapped = mmap.mmap(memory, octets)
    for at in range(0, octets, 4096):
        mapped[at] = 1
    os.close(xdp)
    there.socket.close()
    HELD.append((mapped, memory))
    return octets


def map_often(count):
    """Maps the memory of the last port so often, with all pages, and closes its connection and
    socket."""
    there, (_, (xdp, memory)) = HELD.pop()
    octets, populate = os.fstat(memory).st_size, 0x8000
    # Python's own would have a descriptor each.
    of_c = ctypes.CDLL(None, use_errno=True).mmap
    of_c.restype, of_c.argtypes = ctypes.c_ssize_t, [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
    for _ in range(int(count)):
        mapped = of_c(None, octets, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | populate, memory, 0)
        assert mapped != -1, os.strerror(ctypes.get_errno())
    os.close(memory)
    os.close(xdp)
    there.socket.close()


def kept():
    """Returns how much of the memory that was kept there is, in octets, and what is read there; and
    whether it can be made longer."""
    _, memory = HELD[-1]
    octets = 512 * os.fstat(memory).st_blocks
    for grow in (lambda: os.ftruncate(memory, 1 << 30), lambda: os.posix_fallocate(memory, 0, 1 << 30), lambda: os.ftruncate(memory, 0)):
        try:
            grow()
            return "it changes its length"
        except OSError:
            pass
    # By mapping it one would need a hugepage for the zeroes, and die where no other is left.
    return "%d %d" % (octets, os.pread(memory, 1, 0)[0])


def ask_for(rx_frames, tx_frames, tx_ring):
    """Asks for a port of this size. Returns what it gets, or why not."""
    answer, _ = Connection().ask("open_port", netdev=NETDEV, rx_frames=int(rx_frames), tx_frames=int(tx_frames), tx_ring=int(tx_ring))
    return answer.get("message", answer["type"])


def open_rings():
    """Opens a port with a lease. Returns its rings."""
    there = Connection()
    grant, descriptors = there.open_port()
    lease, _ = there.ask("listen", port=grant["port"], local="%s:%d" % (NEAR, SOURCE_PORT), peers=None)
    assert lease["type"] == "lease", lease
    rings = Rings(grant, descriptors)
    HELD.append((there, rings))
    return rings


def chosen(count):
    """Leases TCP ports that rnicd chooses, as long as it gets some. Returns how many."""
    there = Connection()
    grant, descriptors = there.open_port()
    HELD.append((there, descriptors))
    for taken in range(int(count)):
        answer, _ = there.ask("connect", port=grant["port"], remote="10.9.0.2:9", local=None)
        if answer["type"] != "lease":
            assert "over a third" in answer["message"], answer
            return taken
    return count


def prefixes(count):
    """Leases a port for so many prefixes of peers. Returns what it is told."""
    there = Connection()
    grant, descriptors = there.open_port()
    HELD.append((there, descriptors))
    peers = ["10.%d.%d.0/24" % (n >> 8, n & 255) for n in range(int(count))]
    answer, more = there.ask("listen", port=grant["port"], local=NEAR + ":0", peers=peers)
    HELD.append(more)
    return answer.get("message", answer["type"])


def frames(own_mac, peer_mac):
    """Sends one frame of each kind. Returns the port, whose counters say what became of them."""
    rings = open_rings()
    for frame in specimens(own_mac, peer_mac):
        rings.send(frame)
    return rings.grant["port"]


def deluge(kind, own_mac, peer_mac):
    """Sends valid or forged frames as fast as the kernel takes them, until the next line comes.
    Returns the port, and how many."""
    valid, *forged = specimens(own_mac, peer_mac)
    rings = open_rings()
    rings.fill({"valid": [valid], "forged": forged}[kind])
    for _ in until_next_line():
        rings.pour()
    return "%d %d" % (rings.grant["port"], rings.taken())


def fork(count):
    """Makes so many children fill the rings and the memory of one port with garbage, all at once,
    until they are killed. Returns the port."""
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


def at(path):
    """Connects there from now on."""
    os.environ["RNICD_SOCKET"] = path


def lingering(seconds):
    """Returns a descriptor whose close takes so long."""
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    HELD.append((listener, listener.accept()[0]))
    one.setblocking(False)
    attempt(lambda: [one.send(b"x" * 65536) for _ in range(10000)])
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, int(seconds)))
    return one


def send_along(there, octets, one):
    """Sends a descriptor with octets. Returns whether the kernel takes it."""
    try:
        there.sendmsg([octets], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno()]))])
    except PermissionError:
        # Else this process waits for it itself.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return "refused"
    return "taken"


def linger(seconds):
    """Sends a descriptor whose close takes so long. Returns whether rnicd takes it."""
    there = connect()
    HELD.append(there)
    return send_along(there, b'{"id":1,"type":"hello","version":2,"program":"x"}', lingering(seconds))


def linger_in_an_answer(seconds):
    """Does the same by the connection for the answer to an inspection, which rnicd still holds for
    a client that reads nothing and leaves."""
    there, other = Connection(), Connection()
    grant, descriptors = there.open_port()
    there.tell("show", what="daemon")
    while not select.select([there.socket], [], [], 0)[0]:
        pass
    _, ends = other.ask("inspect", port=grant["port"], what="qp", within=1000)
    with socket.socket(fileno=ends[0]) as answer:
        taken = send_along(answer, b"x", lingering(seconds))
    there.socket.close()
    HELD.append(descriptors)
    return taken


def show(what):
    """Returns how many objects this user sees, or why none."""
    answer, _ = Connection().ask("show", what=what)
    return str(len(answer["list"])) if "list" in answer else answer["reason"]


def end_port(port):
    """Ends a port. Returns the kind of the answer."""
    return Connection().ask("end_port", port=int(port))[0]["type"]


def may_follow(destination):
    """Follows the next hop to a destination. Returns whether that is allowed."""
    there = Connection()
    port = there.open_port()
    HELD.append((there, port))
    there.tell("follow", port=port[0]["port"], destination=destination)
    there.last += 1
    there.socket.send(json.dumps({"id": there.last, "type": "nothing"}).encode())
    while True:
        said = json.loads(there.socket.recv(MAX_MESSAGE))
        if said.get("id") == there.last:
            return "yes"
        if said.get("id") == there.last - 1:
            return said["reason"]


def adopt_much(count):
    """Claims on many connections to have leased what it has not, and reads nothing."""
    there = Connection()
    grant, descriptors = there.open_port()
    HELD.append((there, descriptors))
    leases = ["10.1.%d.%d:1" % (n >> 8, n & 255) for n in range(3000)]
    adopt = {"id": 9, "type": "adopt", "port": grant["port"], "token": grant["token"], "leases": leases}
    octets = json.dumps(adopt, separators=(",", ":")).encode()
    for _ in range(int(count)):
        other = Connection()
        other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        other.socket.send(octets)
        HELD.append(other)


def adopt_often(count):
    """Comes back to its own port again and again."""
    there = Connection()
    grant, descriptors = there.open_port()
    for _ in range(int(count)):
        there.ask("adopt", port=grant["port"], token=grant["token"], leases=[])


def adopt_in_a_row(count):
    """Asks again and again, without waiting, for its own port with leases that it does not have.
    Returns of how many it was not told when the next request was carried out."""
    there = Connection()
    grant, descriptors = there.open_port()
    HELD.append((there, descriptors))
    for round in range(int(count)):
        leases = ["10.%d.%d.%d:1" % (round, n >> 8, n & 255) for n in range(1000)]
        there.tell("adopt", port=grant["port"], token=grant["token"], leases=leases)
    answered, untold, most = 0, 0, 0
    while answered < int(count):
        kind = json.loads(there.socket.recv(MAX_MESSAGE))["type"]
        if kind == "revoked":
            untold -= 1
        if kind == "adopted":
            answered, untold, most = answered + 1, untold + 1000, max(most, untold)
    return most


def ask_for_pipes(count):
    """Asks what it says of itself, and reads no answer."""
    there = Connection()
    grant, descriptors = there.open_port()
    other = Connection()
    HELD.append((there, descriptors, other))
    for _ in range(int(count)):
        other.tell("inspect", port=grant["port"], what="qp", within=100)


def count_replies():
    """Returns how many replies lie there."""
    _, _, other = HELD[-1]
    count = 0
    other.socket.setblocking(False)
    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(other.socket, MAX_MESSAGE, 4)
        except BlockingIOError:
            return count
        count += 1
        [os.close(one) for one in descriptors]


def pester(kind):
    """Asks for something as fast as rnicd takes it, on many connections, until the next line comes.
    Returns how often."""
    there = Connection()
    grant, _ = there.open_port()
    port, local = grant["port"], "%s:0" % NEAR
    fields = {
        "hello": lambda n: {"version": 2, "program": "again"},
        "open_port": lambda n: {"netdev": NETDEV, "rx_frames": 64, "tx_frames": 128, "tx_ring": 64},
        "adopt": lambda n: {"port": port, "token": grant["token"], "leases": ["10.1.1.1:%d" % (1 + n % 999)] * 2000},
        "listen": lambda n: {"port": port, "local": local, "peers": None},
        "connect": lambda n: {"port": port, "remote": "10.9.0.2:%d" % (1 + n % 9999), "local": None},
        "locate": lambda n: {"port": port, "remote": "10.9.0.%d:%d" % (2 + n % 200, 1 + n % 9999), "local": None},
        "release": lambda n: {"port": port, "local": "%s:%d" % (NEAR, 1 + n % 9999)},
        "admit": lambda n: {"port": port, "local": local, "remote": "10.9.0.2:9"},
        "follow": lambda n: {"port": port, "destination": "10.9.%d.%d" % (n >> 8 & 255, n & 255)},
        "forget": lambda n: {"port": port, "destination": "10.9.0.%d" % (n & 255)},
        "show": lambda n: {"what": ["daemon", "devices", "ports", "leases", "users", "usage"][n % 6]},
        "inspect": lambda n: {"port": port, "what": "qp", "within": 10},
        "garbage": lambda n: {"x": "[" * 60000},
        "monitor": lambda n: {},
        "set_user": lambda n: {"user": "nobody", "changes": []},
    }[kind]
    all = [there] + [Connection() for _ in range(15)]
    for one in all:
        one.socket.setblocking(False)
    count = 0
    for _ in until_next_line():
        for one in all:
            try:
                one.tell(kind, **fields(count))
                count += 1
            except BlockingIOError:
                pass
            except OSError:
                return "%d, then rnicd closed the connection" % count
            try:
                while True:
                    _, descriptors, _, _ = socket.recv_fds(one.socket, MAX_MESSAGE, 4)
                    [os.close(descriptor) for descriptor in descriptors]
            except BlockingIOError:
                pass
    return count


COMMANDS = [garbage, crowd, stand_in_line, disperse, refusals, administer, leases, lease_two, come_back, follow, until_mtu, flood, open_one, hang_up, ignore, forget, pass_over, say, go_on, inspect, hand_over, lease, lease_again, release, let_go, kept, ask_for, frames, scribble, garbage_on, leases_on, deluge, fork, reap, at, linger, linger_in_an_answer, show, end_port, may_follow, adopt_much, adopt_often, ask_for_pipes, count_replies, pester, prefixes, adopt_in_a_row, map_often, chosen]

for line in iter(LINES.readline, b""):
    command, *words = line.decode().split()
    by_name = {known.__name__: known for known in COMMANDS}
    try:
        reply("ok %s" % (by_name[command](*words),))
    except Exception as error:  # what it does wrong is the test's to judge
        reply("error %s: %r" % (type(error).__name__, error))
