"""The peer for DDP over SCTP in the guest of ci/nic: ci/guest/sctp-peer, whose main.c explains its
steps.

    peer = SctpPeer(nics, "west", f"listen {WEST} 7471", ["expect name=initiate", "accept any"])
    peer.wait_until("listening")
    ... what connects to it ...
    print(peer.ended())
"""

import shlex

from nic import WEST
from nic_cases import expect

PORT = 7471


class SctpPeer:
    """A peer that plays its steps on a side of the guest; `ended` says what it printed."""

    def __init__(self, nics, side, role, steps, options=""):
        self._nics = nics
        words = ["sctp-peer", *role.split(), *options.split()]
        for step in steps:
            words += [",", *step.split()]
        self._job = nics.bed.spawn(side, f"exec {shlex.join(words)} 2>&1", 60)
        self._name = f"sctp-peer {role} in the {side}"

    def wait_until(self, words):
        """Returns when it has printed these words, or has ended."""
        self._nics.wait(lambda: words in self._job.output() or not self._job.running(),
                        f"{self._name}: {words}", 40)

    def ended(self):
        """Waits for its end; returns its lines. The case fails if the peer did not see what it
        was to see."""
        done = self._job.wait()
        expect(done.code == 0, f"{self._name} ends with {done.code}:", done.output)
        return done.output.splitlines()


def talk(nics, connects, listens, options="", address=WEST, connector="connect", listener="listen",
         listener_options=""):
    """Two peers: the steps of the one in the east, which connects, and of the one in the west.
    Returns the lines of both."""
    listener = SctpPeer(nics, "west", f"{listener} {address} {PORT}", listens,
                        f"{options} {listener_options}")
    listener.wait_until("listening")
    connector = SctpPeer(nics, "east", f"{connector} {address} {PORT}", connects, options)
    outcomes = []
    for peer in (connector, listener):
        try:
            outcomes.append(peer.ended())
        except Exception as error:  # both are to be seen
            outcomes.append(error)
    failures = [str(outcome) for outcome in outcomes if isinstance(outcome, Exception)]
    expect(not failures, "\n".join(failures), f"steps of the east: {connects}",
           f"steps of the west: {listens}")
    return outcomes
