"""MPA start-up with siw in all its forms: private data, read depths, CRC, revisions,
peer-to-peer."""

import itertools

from bench import case, expect, expect_crcs
from operations import OPERATIONS, ROLES, SIDES
from play import play
from siw import find

# siw carries 251 octets of private data in each direction.
PRIVATE_DATA = [*range(10), 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, *range(247, 252)]
# (IRD, ORD) of siw and of ours. siw rounds its ORD up to a power of two, and so exceeds what was
# agreed on.
DEPTHS = [
    ((16, 16), (16, 16)), ((1, 1), (1, 1)), ((2, 2), (16, 16)), ((16, 16), (2, 2)), ((128, 128), (128, 128)),
    ((128, 1), (1, 128)), ((1, 128), (128, 1)), ((3, 4), (8, 11)), ((128, 128), (1, 1)),
]


def every_operation(size=1500, count=1):
    return [f"{side} {operation} {size} count={count}" for side in SIDES for operation in OPERATIONS
            if count == 1 or not operation.endswith("inv")]


def first_opcodes(capture):
    """Returns RDMAP's opcode in the first FPDU of each connection that has one."""
    seen = {}
    for layers in capture.packets("iwarp_rdma.opcode"):
        seen.setdefault(layers["tcp"]["tcp.stream"], int(next(find(layers, "iwarp_rdma.opcode")), 16))
    return list(seen.values())


for initiator, role in ROLES:

    @case(f"private data: {role}")
    def _(bench, initiator=initiator):
        lengths = list(zip(PRIVATE_DATA, reversed(PRIVATE_DATA)))
        plan = [f"connection private={request} reply={reply}" for request, reply in lengths]
        # A rejection has some too.
        plan += [f"connection private={request} reply={reply} reject" for request, reply in lengths]
        play(bench, initiator, "\n".join(plan))

    @case(f"read depths: {role}")
    def _(bench, initiator=initiator):
        plan = []
        for siw, ours in DEPTHS:
            plan.append(f"connection siw.ird={siw[0]} siw.ord={siw[1]} ours.ird={ours[0]} ours.ord={ours[1]}")
            plan += [f"{side} read {size} count=100" for side in SIDES for size in (1, 3000)]
        played = play(bench, initiator, "\n".join(plan))
        for (siw, ours), said in zip(DEPTHS, played.ours):
            depths = f"{ours[0]}/{min(ours[1], siw_ird(siw[0], ours[1], initiator))}"
            expect(said.depths[0].startswith(depths + " "), f"{siw} and {ours} should make {depths}:", said)

    @case(f"CRC asked for or not: {role}")
    def _(bench, initiator=initiator):
        for ours, required in itertools.product((True, False), repeat=2):
            plan = [f"connection {'' if ours else 'ours.no-crc'}", *every_operation()]
            with bench.switches(mpa_crc_required="Y" if required else "N"), bench.capture() as capture:
                play(bench, initiator, "\n".join(plan))
            # As responder siw does not ask.
            expect_crcs(capture, used=ours or (required and initiator == "siw"))

    @case(f"MPA revision 1, every operation: {role}")
    def _(bench, initiator=initiator):
        with bench.switches(mpa_version=1):
            play(bench, initiator, "\n".join(["connection ours.revision=1", *every_operation(), *every_operation(7, 16)]))


def siw_ird(own, asked, initiator):
    """siw as responder takes as many Reads as it is asked to."""
    return max(own, min(asked, 128)) if initiator == "ours" else own


@case("siw refuses CRCs: we connect")
def _(bench):
    with bench.switches(mpa_crc_strict="Y"):
        plan = ["connection refused", "connection ours.no-crc", *every_operation()]
        played = play(bench, "ours", "\n".join(plan))
    expect("reject" in played.ours[0].refused[0], "the first connection was not rejected:", played.ours[0])


def peer_to_peer():
    """Either side may be the first to send."""
    for first in ("", "responder-greets"):
        yield f"connection ours.peer-to-peer {first}"
        yield from every_operation()


WRITE, READ = 0, 1


@case("peer-to-peer start-up: we connect")
def _(bench):
    with bench.capture() as capture:
        play(bench, "ours", "\n".join(peer_to_peer()))
    expect(first_opcodes(capture) == [WRITE, WRITE], "no Write came first:", first_opcodes(capture))


@case("peer-to-peer start-up: siw connects")
def _(bench):
    # The ready-to-receive messages that siw asks for, and the one that comes.
    for kinds, opcode in ((128 + 64, WRITE), (128, WRITE), (64, READ)):
        with bench.switches(peer_to_peer="Y", rtr_type=kinds), bench.capture() as capture:
            play(bench, "siw", "\n".join(peer_to_peer()))
        expect(first_opcodes(capture) == [opcode] * 2, f"not {opcode} came first:", first_opcodes(capture))
