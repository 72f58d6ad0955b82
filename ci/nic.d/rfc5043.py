"""DDP over SCTP (RFC 5043): ci/guest/sctp-peer against itself.

It was written from the RFCs alone, to judge other implementations. These cases prove that what it
says is understood, that it sees each misbehaviour that it can show, and that tshark reads both.
"""

import base64
import contextlib
import pathlib
import re
import subprocess
import tempfile

from nic_cases import ROOT, case, expect, tcpdump
from sctp_peer import talk

# It uses the kernel's SCTP: one kind of NIC is like another.
KINDS = ("virtio",)
EAST6, WEST6 = "fd79::1", "fd79::2"
EAST_BARE, WEST_BARE = "10.79.0.77", "10.79.0.78"


def opened(*steps):
    """The active side's steps in a session, and those that open and end it."""
    return ["initiate 0", "expect name=accept", *steps, "terminate 0", "expect over stream=0"]


def accepted(*steps):
    """The passive side's."""
    return ["expect name=initiate", "accept 0", *steps, "expect name=terminate", "expect over"]


@case("sctp peer: sessions", kinds=KINDS)
def _(nics):
    # With as many private data as there may be.
    talk(nics, ["initiate 0 length=512 seed=5", "expect name=accept private=3 text=yes",
                "terminate 0", "expect over"],
         ["expect name=initiate private=512 stream=0 ssn=0", "accept any text=yes",
          "expect name=terminate", "expect over"])
    # In the enhanced form, with the most depths, and any flags.
    talk(nics, ["initiate 3 depths=16383/7 flags=ABD text=deep",
                "expect name=enhanced-accept ird=7 ord=2 flags=C text=so", "terminate 3",
                "expect over stream=3"],
         ["expect name=enhanced-initiate ird=16383 ord=7 flags=ABD text=deep private=4 stream=3",
          "accept any depths=7/2 flags=C text=so", "expect over"])
    # Rejected in both forms; the stream serves again, from DDP-SSN 0.
    talk(nics, ["initiate 0", "expect name=reject text=no ssn=0", "initiate 0 depths=1/1",
                "expect name=enhanced-reject ssn=0",
                "initiate 0 text=again", "expect name=accept ssn=0", "terminate 0",
                "expect over chunks=2"],
         ["expect name=initiate", "reject 0 text=no", "expect name=enhanced-initiate ssn=0",
          "reject 0",
          "expect name=initiate text=again ssn=0", "accept 0", "expect name=terminate",
          "expect over chunks=2"])
    # The passive side ends it, and the active side does not answer.
    talk(nics, ["initiate 0", "expect name=accept", "expect name=terminate", "expect over",
                "initiate 0", "expect name=accept"],
         ["expect name=initiate", "accept 0", "terminate 0", "expect name=initiate ssn=0",
          "absent name=terminate", "accept 0"],
         "silent")
    # More requests than may wait.
    over = [f"initiate {stream}" for stream in range(4)]
    talk(nics, [*over, "expect name=terminate ssn=0 stream=2", "expect name=terminate stream=3",
                "expect name=accept stream=0",
                "expect name=reject stream=1"],
         ["expect over-the-limit stream=3", "accept 0", "reject 1"], "backlog=2")


@case("sctp peer: several sessions on one association, over IPv6", kinds=KINDS)
def _(nics):
    streams = range(5)
    east = [f"initiate {stream} text=session-{stream}" for stream in streams]
    west = [f"expect name=initiate stream={stream} text=session-{stream}" for stream in streams]
    for stream in streams:
        east += [f"expect name=accept stream={stream}",
                 f"send {stream} length=5000 seed={stream + 10}"]
        west += [f"accept {stream}", f"send {stream} length=4000 seed={stream + 20}"]
    for stream in streams:
        east += [f"expect op=send stream={stream} length=4000 seed={stream + 20}"]
        west += [f"expect op=send stream={stream} length=5000 seed={stream + 10}"]
    # One ends, while the others go on.
    east += ["terminate 2", "expect over stream=2", "send 4 text=on", "expect op=send text=yes"]
    west += ["expect name=terminate stream=2", "expect op=send stream=4 text=on", "send 4 text=yes"]
    with ipv6(nics):
        talk(nics, east, [*west, "expect end=shutdown"], "streams=5", address=WEST6)


@contextlib.contextmanager
def ipv6(nics):
    """Both sides have an address of IPv6."""
    added = ((nics.east, f"{EAST6}/64 dev nic0"), (nics.west, f"{WEST6}/64 dev nic1"))
    for run, address in added:
        run(f"ip address add {address} nodad").checked()
    try:
        yield
    finally:
        for run, address in added:
            run(f"ip address delete {address}")


LEARN = ("expect op=send length=16", "learn 0")


@case("sctp peer: messages", kinds=KINDS)
def _(nics):
    talk(nics, opened(*LEARN, "send 0 length=0", "send 0 kind=se length=65536 seed=3",
                      "send 0 kind=immediate length=8",
                      "write 0 to=+1000 length=100000 seed=4",
                      "read 0 to=+1000 length=100000 offset=7",
                      "expect op=read-response length=100000 seed=4",
                      "memory 0 offset=7 length=100000 seed=4",
                      "write 0 to=+5", "read 0 length=0", "expect op=read-response length=0",
                      "send 0 kind=inv invalidate text=gone"),
         accepted("advertise 0", "expect op=send length=0",
                  "expect op=send-se length=65536 seed=3 msn=2",
                  "expect op=immediate length=8", "expect op=write length=100000 seed=4",
                  "expect read-request length=100000",
                  "expect op=write length=0",
                  "expect op=send-inv text=gone invalidate=0x5c000001 msn=4"))
    # The passive side reads and writes, in small segments.
    talk(nics, opened("fill 0 offset=10 length=3000 seed=9", "advertise 0 offset=10 length=3000",
                      "expect read-request length=3000", "expect op=write length=500 seed=8",
                      "memory 0 offset=20 length=500 seed=8", "expect op=send-se-inv",
                      "send 0 kind=immediate-se length=8"),
         accepted(*LEARN, "read 0 length=3000", "expect op=read-response seed=9",
                  "write 0 to=+10 length=500 seed=8",
                  "send 0 kind=se-inv length=1 invalidate", "expect op=immediate-se"), "segment=64")


@case("sctp peer: chunks in any order", kinds=KINDS)
def _(nics):
    held = ("hold 0", "write 0 length=30000 seed=6", "send 0 length=7000 seed=7",
            "send 0 text=last")
    come = ("expect op=write length=30000 seed=6", "expect op=send length=7000 seed=7 msn=1",
            "expect op=send text=last msn=2")
    for order in ("reversed", "shuffled=1", "shuffled=77"):
        talk(nics, opened(*LEARN, *held, f"release 0 {order}"),
             accepted("advertise 0", "expect ahead", *come))
    # What lies behind a gap is placed and not delivered; with the gap filled, all is delivered.
    placed = ("memory 0 offset=1386 length=1386 seed=6", "absent op=write", "absent op=send",
              "send 0 text=placed")
    gap = ("hold 0", "write 0 to=+0 length=1386 seed=7", "write 0 to=+1386 length=1386 seed=6",
           "send 0 text=last",
           "release 0 reversed drop=0", "expect text=placed")
    talk(nics, opened(*LEARN, *gap, "release 0", "expect text=all"),
         accepted("advertise 0", *placed, "expect op=write seed=7", "expect op=write seed=6",
                  "expect text=last",
                  "send 0 text=all"), "segment=1400")
    # Nothing fills it.
    talk(nics, ["initiate 0", "expect name=accept", *LEARN, *gap],
         ["expect name=initiate", "accept 0", "advertise 0", *placed, "expect end=shutdown",
          "absent op=write", "absent op=send"],
         "segment=1400")


# What one side does, and the breach that the other finds. It ends the session.
BREACHES = {
    "a segment before the Initiate": (["send 0 text=early"], "no-session"),
    "an Accept of nothing": (["chunk 0 code=2"], "no-session"),
    "two Initiates": (["initiate 0", "initiate 0"], "initiate-in-a-session"),
    "an Initiate with more private data": (["initiate 0 length=513"], "private-data-of-513-octets"),
    "an enhanced one with more": (["initiate 0 depths=1/1 length=509"],
                                  "private-data-of-513-octets"),
    "an enhanced one without depths": (["chunk 0 code=5 hex=0001"], "no-depths"),
    "a segment before the Accept": (["initiate 0", "acknowledged", "send 0 text=early"],
                                    "segment-before-accept"),
    "a function code that is none": (["initiate 0", "acknowledged", "chunk 0 code=9"],
                                     "function-code-9"),
    "a control message without its code": (["initiate 0", "acknowledged", "chunk 0 hex=00"],
                                           "chunk-of-3-octets"),
}
BREACHES_IN_A_SESSION = {
    "an Initiate": (["initiate 0"], "initiate-in-a-session"),
    "an Initiate with DDP-SSN 0": (["chunk 0 code=1 ssn=0"], "ddp-ssn-0-unexpected"),
    "an Accept": (["chunk 0 code=2"], "answer-without-a-request"),
    "a DDP-SSN twice": (["hold 0", "send 0", "send 0 length=9", "release 0 twice=1"],
                        "ddp-ssn-2-unexpected"),
    "one ahead twice": (["hold 0", "send 0", "send 0", "release 0 reversed drop=0 twice=1"],
                        "ddp-ssn-2-unexpected"),
    "a DDP-SSN that is too far ahead": (["chunk 0 ppid=16 ssn=+32769 length=30"],
                                        "ddp-ssn-32770-unexpected"),
    "an ordered chunk": (["chunk 0 ppid=16 ordered length=30"], "ordered-chunk"),
    "another PPID": (["chunk 0 ppid=18 length=30"], "ppid-18"),
    "a Terminate with private data": (["chunk 0 code=4 text=x"], "private-data-in-terminate"),
    "a segment behind the Terminate": (["terminate 0", "send 0"], "chunk-after-the-end"),
    "a segment shorter than its header": (["chunk 0 ppid=16 hex=c140000000"],
                                          "segment-of-5-octets"),
}
# Other errors, and what RDMAP's Terminate says of them: layer, type, code.
SEGMENT = "chunk 0 ppid=16 hex="
FAULTS = [
    ("no STag", (1, 1, 0), ["write 0 stag=0xbad to=0x100000 length=1"]),
    ("behind the region", (1, 1, 1), ["write 0 to=+1048575 length=2"]),
    ("before the region", (1, 1, 1), ["write 0 to=0xfffff length=1"]),
    ("the STag of another stream", (1, 1, 2), ["write 0 stag=0x5c000101 length=1"]),
    ("a tagged offset that wraps", (1, 1, 3), ["write 0 to=0xffffffffffffffff length=2"]),
    ("another version of DDP", (1, 1, 4), [f"{SEGMENT}c2405c000001000000000010000061"]),
    ("no such queue", (1, 2, 1), [f"{SEGMENT}4143000000000000000900000001000000000061"]),
    ("no receive", (1, 2, 2), ["hold 0", "send 0", "send 0", "send 0", "release 0 reversed"]),
    ("an MSN of before", (1, 2, 3), ["send 0", f"{SEGMENT}414300000000000000000000000100000000"]),
    ("a message offset that is none", (1, 2, 4),
     [f"{SEGMENT}41430000000000000000000000010001000161"]),
    ("a message that is too long", (1, 2, 5), ["send 0 length=65537"]),
    ("another version, untagged", (1, 2, 6), [f"{SEGMENT}42430000000000000000000000010000000061"]),
    ("a Read of no STag", (0, 1, 0), ["read 0 stag=0xbad length=1"]),
    ("a Read behind the region", (0, 1, 1), ["read 0 to=+1048570 length=7"]),
    ("a Read of another stream's region", (0, 1, 3), ["read 0 stag=0x5c000101 length=1"]),
    ("a Send that invalidates nothing", (0, 1, 9), ["send 0 kind=inv invalidate=0xbad"]),
    ("another version of RDMAP", (0, 2, 5), [f"{SEGMENT}418300000000000000000000000100000000"]),
    ("an opcode that is none", (0, 2, 6), [f"{SEGMENT}414f00000000000000000000000100000000"]),
    ("a Read Response to nothing", (0, 2, 6), [f"{SEGMENT}c1425c000001000000000010000061"]),
]


@case("sctp peer: breaches of RFC 5043", kinds=KINDS)
def _(nics):
    ended = "expect name=terminate stream=0"
    for steps, breach in BREACHES.values():
        talk(nics, [*steps, ended],
             [f"expect violation why={breach} stream=0", "expect end=shutdown"])
    for steps, breach in BREACHES_IN_A_SESSION.values():
        # Other sessions go on.
        talk(nics, ["initiate 0", "initiate 1", "expect name=accept stream=0",
                    "expect name=accept stream=1", *steps, ended,
                    "send 1 text=on", "expect text=yes"],
             ["expect name=initiate stream=1", "accept 0", "accept 1",
              f"expect violation why={breach} stream=0",
              "expect text=on stream=1", "send 1 text=yes"])
    # Answers that are none.
    talk(nics, ["initiate 0 depths=1/1", "expect violation why=answer-of-the-other-form"],
         ["expect name=enhanced-initiate", "accept 0 plain", ended])
    talk(nics, ["initiate 0", "expect violation why=answer-of-the-other-form"],
         ["expect name=initiate", "chunk 0 code=7", ended])


@case("sctp peer: faults of DDP and RDMAP", kinds=KINDS)
def _(nics):
    for _, (layer, kind, code), steps in FAULTS:
        which = f"layer={layer} type={kind} code={code}"
        talk(nics, ["initiate 0", "expect name=accept", *LEARN, *steps,
                    f"expect terminated {which} ddp_header=yes",
                    "expect name=terminate"],
             ["expect name=initiate", "accept 0", "advertise 0", f"expect fault {which}",
              "expect end=shutdown"],
             listener_options="receives=2")
    # One that a peer makes up.
    talk(nics, opened("expect terminated layer=2 type=0 code=6 ddp_header=no"),
         accepted("rdmap-terminate 0 layer=2 code=6"))


@case("sctp peer: indications, and ends of associations", kinds=KINDS)
def _(nics):
    talk(nics, ["expect end=abort"],
         ["expect established indication=2 ddp=no", "expect end=aborted-here"],
         "indication=2", listener_options="indication=1")
    talk(nics, ["expect established indication=none ddp=no", "expect end=aborted-here"],
         ["expect established indication=1 streams_in=8", "expect end=abort"],
         listener_options="indication=0")
    talk(nics, ["initiate 0", "expect name=accept", "abort"],
         ["expect name=initiate", "accept 0", "expect end=abort"])
    talk(nics, ["initiate 0", "expect name=accept", "expect association shutting-down"],
         ["expect name=initiate", "accept 0", "shutdown"])
    talk(nics, ["expect streams_in=3 streams_out=3"], ["expect streams_in=3 streams_out=3"],
         listener_options="streams=3")
    nobody = nics.east("sctp-peer connect 10.79.0.2 7999 , expect association end=abort refused")
    expect(nobody.code == 0, "a refused association is not told:", nobody.output)


@contextlib.contextmanager
def bare_addresses(nics):
    """Two addresses that no kernel has, and that each side's knows where to reach."""
    known = ((nics.west, f"{EAST_BARE} lladdr 52:54:00:79:00:01 dev nic1"),
             (nics.east, f"{WEST_BARE} lladdr 52:54:00:79:00:02 dev nic0"))
    for run, neighbour in known:
        run(f"ip neighbour replace {neighbour}").checked()
    try:
        yield
    finally:
        for run, neighbour in known:
            run(f"ip neighbour delete {neighbour}")


@case("sctp peer: without an indication", kinds=KINDS)
def _(nics):
    sees_none = ["expect established indication=none ddp=no", "expect end=aborted-here"]
    is_refused = ["expect established indication=1 streams_in=8", "expect end=abort"]
    exchange = (opened(*LEARN, "hold 0", "write 0 length=9000 seed=2", "send 0 text=x",
                       "release 0 reversed",
                       "read 0 length=3000", "expect op=read-response", "expect op=send text=y"),
                accepted("advertise 0", "expect op=write length=9000 seed=2",
                         "expect op=send text=x", "send 0 text=y"))
    listens = {"address": WEST_BARE, "listener": "bare-listen"}
    with bare_addresses(nics):
        connects = {"connector": "bare-connect", "options": f"from={EAST_BARE}"}
        talk(nics, *exchange, **connects)
        talk(nics, *exchange, **listens)
        connects["options"] += " indication=0"
        talk(nics, is_refused, sees_none, listener_options="indication=1", **connects)
        talk(nics, sees_none, is_refused, listener_options="indication=0", **listens)


@case("sctp peer: rping", kinds=KINDS)
def _(nics):
    talk(nics, ["rping-client 3 plain"],
         ["expect name=initiate private=0", "rping-server any", "expect rounds=3"])
    lines = talk(nics, ["rping-client 0 count=5 size=3000"],
                 ["expect name=enhanced-initiate ird=1 ord=1", "rping-server any"])
    pings = [[line.partition("=")[2] for line in side if line.startswith(what)]
             for side, what in zip(lines, ("ping=", "pong="))]
    expect(len(pings[0]) == 5 and pings[0] == pings[1], "they see different pings:", pings)
    expect("rounds=5" in lines[1], "the server tells of other rounds:", lines[1])


def read_capture(nics):
    """What tshark makes of the capture in the west, as far as there is one."""
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory, "sctp.pcap")
        file.write_bytes(base64.b64decode(nics.west("base64 /tmp/sctp.pcap").checked()))
        script = f"lua_script:{ROOT / 'ci/lib/ddp_sctp.lua'}"
        return subprocess.run(["tshark", "-X", script, "-r", file, "-V"], capture_output=True,
                              text=True).stdout


@case("sctp peer: tshark reads it", kinds=KINDS)
def _(nics):
    with tcpdump(nics.bed, "west", "/tmp/sctp.pcap", "sctp"):
        talk(nics, ["initiate 0 depths=4/5 text=hi", "expect name=enhanced-accept", *LEARN,
                    "write 0 to=+9 length=3000",
                    "send 0 kind=se text=x", "read 0 length=20", "expect op=read-response",
                    "read 0 stag=0xbad length=1",
                    "expect terminated layer=0 type=1 code=0 rdmap_header=yes",
                    "expect name=terminate"],
             ["expect name=enhanced-initiate", "accept 0 depths=5/4 text=ho", "advertise 0",
              "expect read-request length=20",
              "expect fault", "expect end=shutdown"], "segment=1400")
        nics.wait(lambda: "SHUTDOWN_COMPLETE chunk" in read_capture(nics), "the association has ended")
    read = read_capture(nics)
    nics.west("rm /tmp/sctp.pcap").checked()
    for text, times in {
        "Adaptation Layer Indication parameter": 2, "Function Code: Enhanced Initiate (5)": 1,
        "IRD and ORD: 0x00040005": 1,
        "Function Code: Enhanced Accept (6)": 1, "IRD and ORD: 0x00050004": 1,
        "Private Data: 6869": 1,
        "Function Code: Terminate (4)": 2, "OpCode: Write (0x0)": 3, "OpCode: Send (0x3)": 1,
        "OpCode: Send with SE (0x5)": 1,
        "OpCode: Read Request (0x1)": 2, "OpCode: Read Response (0x2)": 1,
        "OpCode: Terminate (0x7)": 1, "Malformed": 0,
    }.items():
        expect(read.count(text) == times,
               f"tshark reads '{text}' {read.count(text)} times instead of {times}:",
               *re.findall(".*(?:OpCode|Function Code|Malformed).*", read))
