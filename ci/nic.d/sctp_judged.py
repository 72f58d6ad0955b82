"""rnic over SCTP, judged by ci/guest/sctp-peer: a peer that was written from the RFCs alone, and
that misbehaves."""

import contextlib
import re

from nic import WEST
from nic_cases import case, expect
from own_tests import of_crate
from rfc5043 import (BREACHES, BREACHES_IN_A_SESSION, EAST_BARE, FAULTS, LEARN, WEST_BARE,
                     bare_addresses)
from sctp_peer import PORT, SctpPeer

# The kernel's SCTP is the same on each kind of NIC.
KINDS = ("virtio",)
SERVER = f"{WEST}:{PORT}"


def on_stream(stream, steps):
    """The steps of stream 0 on another stream."""
    return [re.sub(r"^([a-z-]+) 0\b", rf"\1 {stream}", step) for step in steps]


def connecting(nics, steps, options="", role="connect"):
    """A peer in the east with an association to rnic in the west; returns its lines."""
    return SctpPeer(nics, "east", f"{role} {WEST} {PORT}", steps, options).ended()


def rping_client(nics, steps, words="", options="", role="listen", address=WEST, run="exec"):
    """rnic's rping in the east, which connects to a peer in the west that plays steps. Returns how
    it ended."""
    peer = SctpPeer(nics, "west", f"{role} {address} {PORT}", steps, options)
    peer.wait_until("listening")
    done = nics.east(f"{run} {nics.ctl} rping -c --sctp -a {address} -p {PORT} {words}")
    try:
        peer.ended()
    except Exception as failed:
        expect(False, str(failed), "rnic-ctl rping says:", done.output)
    return done


def says(done, words, what, code=1):
    expect(done.code == code and words in done.output,
           f"{what}: rnic-ctl ends with {done.code} instead of {code}, or does not say '{words}':",
           done.output)


@contextlib.contextmanager
def rping_server(nics, words="", says=""):
    """rnic's rping as a server in the west. It must end in order."""
    serving = nics.serve("rping -s", f"--sctp -a {WEST} -p {PORT} {words}")
    try:
        yield
    except Exception as failed:
        expect(False, str(failed), "rnic-ctl rping -s says:", nics.end(serving).output)
    served = serving.wait()
    expect(served.code == 0 and says in served.output,
           f"rnic's server ends with {served.code}, or does not say '{says}':", served.output)


@case("SCTP judged: rping in both roles and both forms", kinds=KINDS)
def _(nics):
    for stream, form, options in ((0, "", ""), (3, "plain", "segment=200")):
        with rping_server(nics, "-v", "5 pings; disconnected in order"):
            connecting(nics, [f"rping-client {stream} count=5 size=3000 {form}"], options)
    for revision, asks in ((1, "name=initiate"), (2, "name=enhanced-initiate ird=1 ord=1")):
        steps = [f"expect {asks} ssn=0 text=hello", "rping-server any", "expect rounds=5"]
        done = rping_client(nics, steps,
                            f"-C 5 -S 3000 -V -v --private-data hello --mpa-revision {revision}")
        says(done, "5 pings; disconnected in order", asks, code=0)
    for asks, answer in (("initiate 1 text=hi", "reject"),
                         ("initiate 2 text=hi depths=4/4", "enhanced-reject")):
        with rping_server(nics, "--reject no", 'rejected the client, who had said "hi"'):
            connecting(nics, [asks, f"expect name={answer} ssn=0 private=2 text=no"])


# A ping of a client whose steps are single.
PING = ("fill 0 length=30 seed=1", "advertise 0 length=30",
        "expect read-request length=30 stream=0", "expect op=send stream=0",
        "advertise 0 offset=1000 length=30", "expect op=write stream=0 length=30 seed=1",
        "expect op=send stream=0", "memory 0 offset=1000 length=30 seed=1")


def ends(stream):
    return [f"terminate {stream}", f"expect name=terminate stream={stream}"]


@case("SCTP judged: breaches before a session is accepted", kinds=KINDS)
def _(nics):
    # Its first client has the server for itself: later Initiates wait.
    steps = ["initiate 0", "expect name=accept stream=0"]
    for stream, (breach, _) in enumerate(BREACHES.values(), 1):
        steps += [*on_stream(stream, breach), f"expect name=terminate stream={stream}"]
    # The same streams have honest sessions then, and a request that is taken back.
    for stream in range(1, 1 + len(BREACHES)):
        steps += [f"initiate {stream}", *ends(stream)]
    with rping_server(nics, "-v", "1 pings; disconnected in order"):
        connecting(nics, [*steps, "absent name=accept", *PING, *ends(0)], "streams=20")


@contextlib.contextmanager
def rpc_server(nics):
    """rnic's example of a server for many clients, in the west. Has it live to the end; yields what
    returns its output so far."""
    program = of_crate("rnic-verbs")["rpc"]
    serving = nics.bed.spawn("west", f"RNIC_VIA=sctp exec {program} serve nic1 {SERVER} 2>&1", 60)
    nics.wait(lambda: "serving" in serving.output() or not serving.running(), "rpc serves")
    try:
        yield serving.output
    except Exception as failed:
        expect(False, str(failed), "rpc says:", nics.end(serving).output)
    expect(serving.running(), "the server has ended:", serving.output())
    nics.end(serving)


def call(stream, word, number=0):
    """A call of rpc's procedure that turns octets round, and its reply."""
    data = f"{number:016x}00{word.encode().hex()}"
    return f"send {stream} hex={data}", f"expect op=send stream={stream} text={'.' * 9}{word[::-1]}"


def opens(stream):
    return [f"initiate {stream} depths=1/1", f"expect name=enhanced-accept stream={stream}"]



# What ends sessions at rnic with these breaches. The ordered chunk is taken, but is no segment.
SAYS = ("an Initiate where no pattern", "the DDP-SSN 0 twice", "an Accept where no pattern",
        "the DDP-SSN 2 twice", "the DDP-SSN 32770 twice", "DDP version 3 is not supported",
        "payload protocol 18", "a Terminate with 1 octets of private data",
        "a ULPDU of 5 octets is shorter than its DDP header", "closed by the peer")


def sends_calls(steps):
    """rpc ends a connection on which something else than calls comes."""
    return ["send 0 length=9" if step == "send 0" else step for step in steps]


@case("SCTP judged: breaches in a session", kinds=KINDS)
def _(nics):
    # All are sessions of one association, and one goes on.
    steps = [*opens(0), *call(0, "first")]
    for stream, (breach, _) in enumerate(BREACHES_IN_A_SESSION.values(), 1):
        steps += [*opens(stream), *on_stream(stream, sends_calls(breach)),
                  f"expect name=terminate stream={stream}", *call(0, f"behind-{stream}")]
    # The streams are good for honest sessions again.
    for stream in range(1, 1 + len(BREACHES_IN_A_SESSION)):
        steps += [*opens(stream), *call(stream, "again"), *ends(stream)]
    with rpc_server(nics) as said:
        connecting(nics, [*steps, *ends(0)], "streams=20")
        nics.wait(lambda: all(words in said() for words in SAYS), f"rpc says {SAYS}")


def needs_memory(steps):
    """The fault is one of a region of the peer that there is."""
    return any("to=+" in step or "to=0xfff" in step for step in steps)


@case("SCTP judged: faults of DDP and RDMAP", kinds=KINDS)
def _(nics):
    steps = [*opens(0), *call(0, "first")]
    for stream, (name, (layer, kind, code), fault) in enumerate(FAULTS, 1):
        # rpc has one region, which no peer knows, and a thousand receives.
        if needs_memory(fault) or "another stream" in name or name == "no receive":
            continue
        which = f"layer={layer} type={kind} code={code}"
        steps += [*opens(stream), *on_stream(stream, sends_calls(fault)),
                  f"expect terminated stream={stream} {which} ddp_header=yes",
                  f"expect name=terminate stream={stream}", *call(0, f"behind-{stream}")]
    with rpc_server(nics):
        connecting(nics, [*steps, *ends(0)], "streams=30")


@case("SCTP judged: faults that need rnic's memory", kinds=KINDS)
def _(nics):
    for name, (layer, kind, code), steps in FAULTS:
        if not needs_memory(steps):
            continue
        # The first buffer of a ping is for Reads, the second, which follows a message, for Writes.
        learns = ["send 0 length=16", *LEARN] if steps[0].startswith("write") else []
        which = f"layer={layer} type={kind} code={code}"
        done = rping_client(nics, ["accept any", *LEARN, *learns, *steps,
                                   f"expect terminated {which} ddp_header=yes",
                                   "expect name=terminate"])
        says(done, f"Terminate sent: layer {layer}, type {kind}, code 0x{code:02x}: ", name)
    # All come in one step, and rping has four receives.
    done = rping_client(nics, ["accept any", *LEARN, "hold 0", *["send 0 length=16"] * 5,
                               "release 0 reversed",
                               "expect terminated layer=1 type=2 code=2 ddp_header=yes",
                               "expect name=terminate"])
    says(done, "Terminate sent: layer 1, type 2, code 0x02: ", "no receive")


@case("SCTP judged: chunks in any order", kinds=KINDS)
def _(nics):
    # The message behind the Write is the first to come. Were it delivered before, rping would find
    # its ping missing.
    ping = b"rdma-ping-0: " + bytes(65 + i % 58 for i in range(2986)) + bytes(1)
    writes = (f"write 0 hex={ping.hex()}", "send 0 length=16")
    for order in ("reversed", "shuffled=77"):
        done = rping_client(nics, ["accept any", *LEARN, "send 0 length=16", *LEARN, "hold 0",
                                   *writes, f"release 0 {order}", "expect name=terminate"],
                            "-C 1 -V -v -S 3000", "segment=200")
        says(done, "1 pings; disconnected in order", order, code=0)
    # What rnic answers to calls that come backwards.
    calls = [call(0, f"call-{number}", number) for number in range(20)]
    answers = [f"{answer} msn={msn}" for msn, (_, answer) in enumerate(calls, 1)]
    with rpc_server(nics):
        for order in ("reversed", "shuffled=3"):
            connecting(nics, [*opens(0), "hold 0", *(step for step, _ in calls),
                              f"release 0 {order}", *answers, *ends(0)])


# The form in which rnic asks, what the peer does then, and what rnic says of it.
ENHANCED, PLAIN = "2 expect name=enhanced-initiate", "1 expect name=initiate"
ENDED = "expect name=terminate"
LEFT = "expect end=shutdown"
REJECTED = "rejected by the server; private data: "
ANSWERS = [
    (ENHANCED, ["reject any text=no", LEFT, "absent name=terminate"], REJECTED + '"no"'),
    (ENHANCED, ["reject any plain text=no", LEFT, "absent name=terminate"], REJECTED + '"no"'),
    (PLAIN, ["reject any", LEFT, "absent name=terminate"], REJECTED + "nothing"),
    (ENHANCED, ["terminate 0", LEFT], "ask it for revision 1 if it does not know RFC 6581"),
    (PLAIN, ["terminate 0", LEFT], "closed by the peer"),
    (ENHANCED, ["accept 0 plain", ENDED], "lacks the enhanced connection data"),
    (PLAIN, ["chunk 0 code=6 hex=00010001", ENDED], "replies with MPA revision 2 to revision 1"),
    (PLAIN, ["chunk 0 code=7", ENDED], "an enhanced Reject where no pattern"),
    (ENHANCED, ["chunk 0 code=6 hex=0001", ENDED], "with 2 octets of private data, it takes 4"),
    (ENHANCED, ["accept 0 length=509", ENDED], "513 octets of private data; the limit is 512"),
    (ENHANCED, [f"chunk 0 ppid=16 hex=4143{'00' * 16}", ENDED], "a segment where no pattern"),
    (ENHANCED, ["chunk 0 code=5 hex=00010001", ENDED], "an Initiate where no pattern"),
    (ENHANCED, ["accept 0", "chunk 0 code=6 hex=00010001", ENDED], "an Accept where no pattern"),
    (ENHANCED, ["accept 0", "rdmap-terminate 0 layer=1 type=1 code=1", ENDED],
     "Terminate received: layer 1, type 1, code 0x01"),
    (ENHANCED, ["shutdown"], "connection reset by the peer"),
    (ENHANCED, ["abort"], "connection reset by the peer"),
]


@case("SCTP judged: answers to rnic's Initiate", kinds=KINDS)
def _(nics):
    for asks, steps, words in ANSWERS:
        revision, _, asks = asks.partition(" ")
        says(rping_client(nics, [asks, *steps], f"--mpa-revision {revision}"), words, str(steps))
    # One that never answers is waited for, until Ctrl-C.
    done = rping_client(nics, ["expect name=enhanced-initiate", ENDED], run="exec timeout -s INT 2")
    says(done, "interrupted", "no answer", code=124)


@case("SCTP judged: peers without DDP's indication", kinds=KINDS)
def _(nics):
    refused = ["expect established indication=1 ddp=yes", "expect end=abort"]
    words = "does not speak DDP"
    says(rping_client(nics, refused, options="indication=2"), words, "another indication")
    with bare_addresses(nics):
        done = rping_client(nics, refused, options="indication=0", role="bare-listen",
                            address=WEST_BARE)
        says(done, words, "no indication")
        with rping_server(nics, "-v", "1 pings; disconnected in order"):
            connecting(nics, refused, "indication=2")
            connecting(nics, refused, f"from={EAST_BARE} indication=0", "bare-connect")
            connecting(nics, ["initiate 0", "expect name=accept", *PING, *ends(0)])
