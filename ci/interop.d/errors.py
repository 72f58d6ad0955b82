"""Requests that the responder must refuse: the errors of each side, and the Terminate on the
wire."""

from dataclasses import dataclass

from bench import case, expect, expect_terminates
from operations import ROLES, SIDES
from play import play

LAST = 0x180000 - 1  # the last octet of the memory that the sides lend each other


@dataclass(frozen=True)
class Error:
    """A request, and the Terminate (layer/type/code) that ours and siw send for it."""

    request: str
    ours: str
    siw: str = None  # as ours
    connection: str = ""
    partly: bool = False  # all of it, or its first segment, is placed before the error shows

    def terminate(self, responder):
        return self.ours if responder == "ours" else self.siw or self.ours


# RFC 5041 has a number for a message too long for its buffer, which siw does not use.
ERRORS = [
    Error("write 64 stag=wrong", "1/1/00"),
    Error("write 64 stag=stale", "1/1/00"),
    Error("write 64 region=freed", "1/1/00"),
    Error("write 5000 stag=wrong", "1/1/00"),
    Error("write 64 count=3 stag=wrong", "1/1/00"),
    Error(f"write 2 at={LAST}", "1/1/01"),
    Error("write 64 at=-1", "1/1/01"),
    Error("write 1 tagged-offset=0", "1/1/01"),
    Error("write 64 region=readable", "1/1/00"),
    Error("write 64 region=private", "1/1/00"),
    Error("write 64 region=foreign", "1/1/02"),
    Error("read 64 stag=wrong", "0/1/00"),
    Error("read 64 stag=stale", "0/1/00"),
    Error("read 64 region=freed", "0/1/00"),
    Error("read 64 count=3 stag=wrong", "0/1/00"),
    Error(f"read 2 at={LAST}", "0/1/01"),
    Error("read 64 at=-1", "0/1/01"),
    Error("read 64 region=foreign", "0/1/03"),
    Error("send 64 no-receive", "1/2/02"),
    Error("send 0 no-receive", "1/2/02"),
    Error("send-se 64 no-receive", "1/2/02"),
    Error("send 64 room=63", "1/2/05", "1/2/02"),
    Error("send 5000 room=1500", "1/2/05", "1/2/02", partly=True),
    Error("send-inv 64 room=63", "1/2/05", "1/2/02"),
]
# Requests that only ours refuses: siw checks neither the right to read nor wrapping, lets every
# STag of the domain be invalidated, and sends no Terminate to a peer that names another one.
OURS_ALONE = [
    Error("write 64 tagged-offset=-8", "1/1/03"),
    Error("read 64 tagged-offset=-8", "0/1/04"),
    Error("read 64 region=writable", "0/1/02"),
    Error("read 64 region=private", "0/1/02"),
    Error("send-inv 64 region=all", "0/1/09", partly=True),
    Error("send-inv 64 stag=wrong", "0/1/09", partly=True),
    Error("send-inv 64 region=foreign", "0/1/09", partly=True),
    Error("send-se-inv 64 region=freed", "0/1/09", partly=True),
]
# Requests that siw does not refuse. They are no errors, although they look so: nothing is placed,
# so no STag is checked.
ALLOWED = [
    "{side} write 0 stag=wrong", "{side} read 0 stag=wrong", "{side} write 0 region=freed", "{side} read 0 region=private",
    "{side} write 64 region=once", "{side} read 64 region=once", "{side} send-inv 64",
    "ours read 64 region=writable", "ours read 64 region=private",
]


def refused(requester):
    """Errors that the other side refuses."""
    return ERRORS + (OURS_ALONE if requester == "siw" else [])


def plan(errors, requester, prefix=()):
    for error in errors:
        yield f"connection {error.connection}"
        yield from prefix
        yield f"{requester} {error.request} ends"


def expect_told(error, requester, played, number):
    """Expects that both sides know why the connection is over."""
    responder = "ours" if requester == "siw" else "siw"
    ours, siw = played.ours[number], played.siw[number]
    about = f"{requester}: {error.request}"
    [end] = ours.end
    control = error.terminate(responder)
    word = "and sent" if responder == "ours" else "the peer sent"
    expect(f"{word} Terminate ({control} " in end, f"{about}: our side does not say that {word} {control}:", end)
    asked = siw if requester == "siw" else ours
    if error.request.startswith("read"):
        expect(asked.completion[-1] not in ("success", "Success"), f"{about}: the Read completed:", asked)
    # What was not delivered was flushed, and none of it is in memory. siw, though, places what it
    # then refuses.
    if responder == "ours":
        expect(error.partly or ours.untouched in ([], ["1"]), f"{about}: memory was changed:", ours)
        expect("Success" not in ours.received, f"{about}: a receive completed:", ours)


for initiator, role in ROLES:

    @case(f"errors: {role}")
    def _(bench, initiator=initiator):
        for requester in SIDES:
            errors = refused(requester)
            with bench.capture() as capture:
                played = play(bench, initiator, "\n".join(plan(errors, requester)))
            responder = "ours" if requester == "siw" else "siw"
            for number, error in enumerate(errors):
                expect_told(error, requester, played, number)
            expect_terminates(capture, *(f"{responder} {error.terminate(responder)}" for error in errors))

    @case(f"what looks like an error: {role}")
    def _(bench, initiator=initiator):
        steps = [step.format(side=side) for side in SIDES for step in ALLOWED]
        play(bench, initiator, "\n".join(["connection", *dict.fromkeys(steps)]))

    @case(f"an STag that was invalidated: {role}")
    def _(bench, initiator=initiator):
        for requester in SIDES:
            before = [f"{requester} write 64 region=once", f"{requester} send-inv 64"]
            errors = [Error("write 64 region=once", "1/1/00"), Error("read 64 region=once", "0/1/00")]
            played = play(bench, initiator, "\n".join(plan(errors, requester, before)))
            for number, error in enumerate(errors):
                expect_told(error, requester, played, number)
