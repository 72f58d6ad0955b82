"""Every operation that siw has, requested by either side: sizes, lists of pieces, many at a
time."""

from bench import OURS, SIW, case, expect
from play import play
from siw import find

OPERATIONS = ["write", "read", "send", "send-se", "send-inv", "send-se-inv"]
SIDES = ["siw", "ours"]
# At 1500 octets of MTU a segment carries 1424 octets of a Send and 1428 of anything tagged.
MULPDUS = [1424, 1428, 2 * 1424, 2 * 1428]
SIZES = [
    *range(10), 15, 16, 17, 31, 33, 63, 64, 65, 255, 1000,
    *(size + more for size in MULPDUS for more in (-1, 0, 1)),
    4095, 4096, 4097, 65535, 65536, 65537, 1 << 20,
]
# Elements of a list at most, and octets of inline data.
PIECES = {"siw": 6, "ours": 4}
INLINE = 64
ROLES = [("siw", "siw connects"), ("ours", "we connect")]


def sizes():
    """Every size at every operation of both sides, from and to odd addresses."""
    for size in SIZES:
        for operation in OPERATIONS:
            for side in SIDES:
                at = f"at={size % 5}" if operation in ("write", "read") else ""
                yield f"{side} {operation} {size} from={size % 7} {at}"
                # siw has no inline data in a Send with Invalidate.
                if size <= INLINE and operation != "read" and (side == "ours" or not operation.endswith("inv")):
                    yield f"{side} {operation} {size} inline {at}"


def pieces():
    """Gather and scatter lists. Only lists without octets have empty pieces: siw cannot send others
    with them."""
    for size in (0, 1, 5, 64, 1424, 1430, 4096, 65537):
        for side, other in (("siw", "ours"), ("ours", "siw")):
            for gather in range(1, PIECES[side] + 1):
                if side == "siw" and 0 < size < gather:
                    continue
                yield f"{side} write {size} pieces={gather} at=3"
                for scatter in range(1, PIECES[other] + 1):
                    yield f"{side} send {size} pieces={gather} into={scatter}"


def pipelines():
    """Many requests at once. Far more Reads than may be outstanding: they wait for each other."""
    for depth in (1, 2, 16, 128):
        yield f"connection ird={depth} ord={depth}"
        for side in SIDES:
            for size in (0, 1, 1500, 16384):
                yield f"{side} read {size} count=60"
    yield "connection siw.ord=4 ours.ird=8 siw.ird=3 ours.ord=11"
    for side in SIDES:
        for size in (0, 1, 63, 1500, 8191):
            for operation in OPERATIONS:
                if operation in ("write", "read", "send", "send-se"):
                    yield f"{side} {operation} {size} count=100 from=1"


def closing():
    yield from ("connection", "ours write 64", "connection responder-closes", "siw write 64",
                "connection responder-closes", "connection")


def lines(*plans):
    return "\n".join(line for plan in plans for line in plan)


for initiator, role in ROLES:

    @case(f"every operation and size: {role}")
    def _(bench, initiator=initiator):
        play(bench, initiator, lines(["connection"], sizes()))

    @case(f"every operation and size: {role}, without CRC")
    def _(bench, initiator=initiator):
        play(bench, initiator, lines(["connection ours.no-crc"], sizes()))

    @case(f"many pieces: {role}")
    def _(bench, initiator=initiator):
        play(bench, initiator, lines(["connection"], pieces()))

    @case(f"many requests at once, more Reads than ORD: {role}")
    def _(bench, initiator=initiator):
        play(bench, initiator, lines(pipelines()))

    @case(f"either side closes: {role}")
    def _(bench, initiator=initiator):
        played = play(bench, initiator, lines(closing()))
        ends = [said.end for said in played.ours]
        ours, theirs = ["closed by this side"], ["closed by the peer"]
        first, second = (theirs, ours) if initiator == "siw" else (ours, theirs)
        expect(ends == [first, second, second, first], "the connections did not end as planned:", *ends)


@case("what a Send says of itself")
def _(bench):
    """siw does not report whether a message came with Solicited Event, so the capture is
    checked."""
    sends = [operation for operation in OPERATIONS if operation.startswith("send")]
    with bench.capture() as capture:
        play(bench, "siw", lines(["connection"], (f"{side} {operation} 77" for side in SIDES for operation in sends)))
    found = []
    for layers in capture.packets("iwarp_rdma.opcode"):
        lengths, opcodes = (list(find(layers, key)) for key in ("iwarp_mpa.ulpdulength", "iwarp_rdma.opcode"))
        found += [(layers["ip"]["ip.src"], int(opcode, 16)) for length, opcode in zip(lengths, opcodes)
                  if int(length) == 18 + 77]
    # Send, with Solicited Event, with Invalidate, with both.
    expect(found == [(sender, opcode) for sender in (SIW, OURS) for opcode in (3, 5, 4, 6)],
           "the opcodes are not as they should be:", *found)
