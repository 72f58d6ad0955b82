"""The tests that rdma-core has for pyverbs, its module for Python. Their rdma_cm tests connect two
processes on one host."""

from programs import ONE_HOST, Case, table

table(
    Case("pyverbs", "{own}/pyverbs/run {device}", ways=(ONE_HOST,), seconds=300, says=(r"^pyverbs: \d+ of \d+ tests pass",)),
)
