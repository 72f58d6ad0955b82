"""Plans that siw and ours play together: ci/guest/siw-play and rnic-ctl/examples/play.

A plan is text. Both sides read all of it, and each knows its own name.

    connection                       the lines below it belong to one connection
        private=N reply=N            octets of private data in the Request and in the Reply (0)
        reject                       the responder rejects
        ird=N ord=N                  read depths to ask for (16)
        ours.no-crc ours.revision=N ours.peer-to-peer       (of siw, its module parameters decide)



        responder-closes             the responder closes instead of the initiator
        responder-greets             the responder sends first, which needs a peer-to-peer
                                     connection
        refused                      the responder's driver refuses the connection
        siw.ord=4                    any other of these, for one side alone
    siw|ours OPERATION LENGTH        a step, and the side that requests it; the other side responds.
                                     write, read, send, send-se, send-inv, send-se-inv
        pieces=N into=N              elements of the gather list, and of the scatter list of a
                                     receive (1)
        count=N                      requests that are posted together (1)
        from=N at=N                  offsets in the requester's and in the responder's memory (0)

        tagged-offset=N              the tagged offset itself, in place of `at`
        inline                       the data stand in the work request
        region=NAME                  of the responder's memory: all (everything allowed, the
                                     default), readable, writable, private (nothing allowed to
                                     peers), foreign (of another protection domain), once (what a
                                     send-inv invalidates; valid before), freed (deregistered
                                     before)

        stag=wrong|stale             another STag than the one that the responder named
        room=N, no-receive           the octets of the receive for a Send, or no receive is posted
        ends                         the step is an error that ends the connection

Every octet of the data is checked, and the octets around them. Both sides print "name=value" lines.
"""

import re
import time
from dataclasses import dataclass

from bench import OURS, PLAY, SIW, expect

SECONDS = 240


@dataclass
class Said:
    """What a side printed about one connection: the values of each name, in order."""

    values: dict

    def __getattr__(self, name):
        return self.values.get(name, [])

    def __str__(self):
        return "; ".join(f"{name}: {', '.join(values)}" for name, values in self.values.items())


@dataclass
class Played:
    """What both sides printed about each connection."""

    ours: list
    siw: list


def connections(text):
    """Returns what a side printed, by connection."""
    found = []
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if not equals:
            continue
        if name == "connection":
            found.append(Said({}))
        elif found:
            found[-1].values.setdefault(name, []).append(value)
    return found


def play(bench, initiator, plan):
    """Plays a plan to its end. `initiator`: the side that connects, "siw" or "ours"."""
    text = "\n".join(line.strip() for line in plan.splitlines() if line.strip())
    path = bench.lan.directory / f"plan-{bench.port}"
    path.write_text(text + "\n")
    guest = f"cat >/tmp/plan.{{port}} <<'END'\n{text}\nEND\nexec siw-play "
    if initiator == "siw":
        ours = bench.ours(PLAY, bench.interface, "listen", f"{OURS}:{bench.port}", path).ready()
        theirs = bench.siw_starts(guest + "connect {host} {port} /tmp/plan.{port}", SECONDS)
    else:
        theirs = bench.siw_serves(guest + "listen {port} /tmp/plan.{port}", SECONDS)
        ours = bench.ours(PLAY, bench.interface, "connect", f"{SIW}:{bench.port}", path)
    while ours.running() and theirs.running():
        time.sleep(0.05)
    # If one side has failed, the other waits in vain.
    failed = f"{initiator} connects; ours:\n{tail(ours.said())}\nsiw's side:\n"
    if not theirs.running() and theirs.wait().code != 0:
        expect(False, failed + tail(theirs.output()))
    expect(ours.end() == 0, failed + tail(theirs.output()))
    done = theirs.wait()
    expect(done.code == 0, failed + tail(done.output))
    return Played(connections(ours.said()), connections(done.output))


def tail(text):
    return re.sub(r"^.*\n(?=(?:.*\n){12})", "", text, flags=re.DOTALL).rstrip()
