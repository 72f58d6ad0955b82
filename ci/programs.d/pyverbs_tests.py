"""The tests that rdma-core has for pyverbs, its module for Python. Their rdma_cm tests connect two
processes on one host."""

from programs import ONE_HOST, Case, table

table(
    # By sockets 12 of its tests see that a Write can complete before it is placed at the peer
    # (docs/design/sockets.md).
    Case("pyverbs", "{own}/pyverbs/run {device}", ways=(ONE_HOST,), frames_only=True, seconds=300, says=(r"^pyverbs: \d+ of \d+ tests pass",)),
)
