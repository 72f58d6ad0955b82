"""Errors that neither side can be made to send: fields of what it does send are changed, see
ci/lib/mangle.py."""

from dataclasses import dataclass

from bench import MANGLED, case, expect, expect_terminates
from operations import ROLES, SIDES
from play import play

WRITE, READ_REQUEST, READ_RESPONSE, SEND = 0, 1, 2, 3
LENGTH = 77  # of the data in question, and of nothing else
NONE = None


@dataclass(frozen=True)
class Spoilt:
    """A step, the FPDU of it that is changed, and the Terminate that ours and siw send for it."""

    step: str
    opcode: int
    change: dict
    ours: str
    siw: str
    connection: str = ""
    payload: int = LENGTH
    liar: bool = False  # the start-up frames are changed so that the requester believes in more depth than there is

    @property
    def from_responder(self):
        return self.opcode == READ_RESPONSE


def crc(step, opcode, payload=LENGTH):
    return Spoilt(f"{step} {LENGTH}", opcode, {"crc": 1}, "2/0/02", "2/0/02", payload=payload)


def write(change, ours, siw):
    return Spoilt(f"write {LENGTH}", WRITE, change, ours, siw)


def send(change, ours, siw, step="send"):
    return Spoilt(f"{step} {LENGTH}", SEND, change, ours, siw)


def request(change, ours, siw):
    return Spoilt(f"read {LENGTH}", READ_REQUEST, change, ours, siw, payload=28)


def response(change, ours, siw):
    return Spoilt(f"read {LENGTH}", READ_RESPONSE, change, ours, siw)


SPOILT = [
    crc("write", WRITE), crc("send", SEND), crc("read", READ_REQUEST, 28), crc("read", READ_RESPONSE),
    write({"ddp-version": 2}, "1/1/04", "1/1/04"),
    send({"ddp-version": 0}, "1/2/06", "1/2/06"),
    write({"rdmap-version": 2}, "0/2/05", "0/2/05"),
    send({"rdmap-version": 3}, "0/2/05", "0/2/05"),
    write({"opcode": 15}, "0/2/06", "0/2/06"),
    send({"opcode": 14}, "0/2/06", "0/2/06"),
    write({"opcode": READ_RESPONSE}, "0/2/06", "1/0/00"),
    send({"qn": 3}, "0/2/06", "1/2/01"),  # ours knows it: Atomic Responses come there
    send({"qn": 0xffffffff}, "1/2/01", "1/2/01"),
    send({"msn+": 1}, "1/2/03", "1/2/03"),
    send({"msn+": -1}, "1/2/03", "1/2/03"),
    send({"msn+": 0x80000000}, "1/2/03", "1/2/03"),
    send({"mo": 8}, "1/2/05", "1/2/04"),
    send({"mo": 0xffffffff}, "1/2/04", "1/2/04"),
    write({"stag+": 1}, "1/1/00", "1/1/00"),
    write({"tagged-offset+": 0x200000}, "1/1/01", "1/1/01"),
    request({"msn+": 1}, "1/2/03", "1/2/03"),
    request({"qn": 3}, "0/2/06", NONE),  # siw does not look at it
    request({"read-size": 70}, "1/1/01", "1/1/01"),
    request({"read-size": 90}, "1/1/01", "1/1/01"),
    response({"stag+": 1}, "1/1/00", "1/1/00"),
    response({"tagged-offset+": 4}, "1/1/01", "1/1/01"),
    response({"opcode": 14}, "0/2/06", "0/2/06"),
    Spoilt(f"write {LENGTH}", WRITE, {"length": 8}, "0/2/ff", "2/0/03", connection="ours.no-crc"),
    Spoilt(f"send {LENGTH}", SEND, {"length": 10}, "0/2/ff", "2/0/03", connection="ours.no-crc"),
    # Each side keeps to the depth that it was told.
    Spoilt("read 65536 count=8", NONE, {}, "0/2/07", "0/2/07", connection="{responder}.ird=1",
           liar=True),
]


def rows(requester, responder):
    """Returns the changes that the side which has to detect them does detect."""
    return [row for row in SPOILT if noticed_by(row, requester, responder) == "ours" or row.siw]


def plan(requester, responder):
    for row in rows(requester, responder):
        yield "connection " + row.connection.format(responder=responder)
        yield f"{requester} {row.step} ends"


def rules(row, initiator, requester, responder):
    """Returns the rules for a connection."""
    found = []
    if row.liar:
        acceptor = "ours" if initiator == "siw" else "siw"
        to_responder, to_requester = {"ord": 1}, {"ird": 16}
        asked, answered = (to_responder, to_requester) if initiator == requester else (to_requester, to_responder)
        found = [{"from": initiator, "frame": "request", "change": asked},
                 {"from": acceptor, "frame": "reply", "change": answered}]
    if row.opcode is not NONE:
        found.append({"from": responder if row.from_responder else requester, "frame": "fpdu",
                      "opcode": row.opcode, "payload": row.payload, "change": row.change})
    return found


def noticed_by(row, requester, responder):
    """Returns the side that has to detect it: the receiver of the FPDU, or the requester of a Read
    whose size was changed."""
    return requester if row.from_responder or "read-size" in row.change else responder


def expect_told(about, noticer, control, ours):
    [end] = ours.end
    layer, kind, code = control.split("/")
    word = "and sent" if noticer == "ours" else "the peer sent"
    # In siw's order of the bits 0/2/05 looks like 2/0/05, which means something too: it can be read
    # either way.
    readings = [control] if noticer == "ours" else [control, f"{kind}/{layer}/{code}"]
    expect(any(f"{word} Terminate ({reading} " in end for reading in readings),
           f"{about}: our side does not say that {word} {control}:", end)


for initiator, role in ROLES:
    for requester in SIDES:

        @case(f"spoilt on the wire, {requester} requests: {role}", MANGLED)
        def _(bench, initiator=initiator, requester=requester):
            responder = "ours" if requester == "siw" else "siw"
            every = [rules(row, initiator, requester, responder) for row in rows(requester, responder)]
            with bench.mangling(every) as mangler, bench.capture() as capture:
                played = play(bench, initiator, "\n".join(plan(requester, responder)))
                changed = mangler.said().count("changed")
            wanted = []
            for number, row in enumerate(rows(requester, responder)):
                noticer = noticed_by(row, requester, responder)
                control = row.ours if noticer == "ours" else row.siw
                expect_told(f"{row.step} {row.change}", noticer, control, played.ours[number])
                wanted.append(f"{noticer} {control}")
            expect(changed == sum(map(len, every)), "not every rule was applied:", mangler.said())
            expect_terminates(capture, *wanted)


@case("read depths not negotiated: we connect", MANGLED)
def _(bench):
    unknown = {"from": "ours", "frame": "request", "change": {"ird": 0x3fff, "ord": 0x3fff}}
    with bench.mangling([[unknown]]):
        played = play(bench, "ours", "\n".join(["connection", *(f"{side} read 1500 count=60" for side in SIDES)]))
    # siw replies with all that it has, and its own ORD.
    expect(played.ours[0].depths == ["16/16 of 128/16"], "other depths than expected:", played.ours[0])
