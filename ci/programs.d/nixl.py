"""NIXL, unmodified from PyPI, with the UCX that it brings. UCX takes TCP without a word where it does
not like a device: so both ends must say that they read and write by rnic."""

from programs import Case, table

# Not that of an agent with itself.
BY_RNIC = r"UCX +INFO .* int(er|ra)-node cfg#\d+ rma\(rc_verbs/rnic_"
RIGHT = r"^contents: right"
# Between processes of one kernel UCX would take shared memory.
LINE = "--as roce env UCX_LOG_LEVEL=info UCX_TLS=^sm {nixl}/contents %s {server}"

table(
    Case("NIXL, reads and writes", LINE % "initiator", LINE % "target", port=18701, kernel=True,
         says=(BY_RNIC, RIGHT), server_says=(BY_RNIC, RIGHT)),
)
