"""Programs that connect their queue pairs themselves, where something goes wrong: an end is killed,
a receive comes late or never, frames are lost."""

from programs import ALONE, SHARED, Case, table
from self_connected import BW, ROCE, perftest, pingpong
from ucx import perftest as ucx_perftest

# On one host no frame passes the path.
LOSS = {"ways": (ALONE, SHARED), "seconds": 60, "waits": True}


def fault(name, which, **how):
    line = f"{{own}}/faults %s {{server}} {{device}} {which}"
    return Case(f"{name}, self-connected", line % "client", line % "server", port=18600, kernel=True, waits=True, **how)


table(
    fault("an end is killed", "killed", server_code=-9, says=(r"^status 12 after ",)),
    fault("an end is killed while the other reads", "killed-reading", server_code=-9, says=(r"^\d+ Reads, then status 12",)),
    fault("both read before they receive", "reads"),
    fault("an end reads before it receives", "reads-late"),
    fault("a shared receive queue is dry for 5 s", "dry", server_says=(r"^15 messages; dry for 5",)),
    fault("a receive comes after 5 s", "late"),
    fault("requests wait behind a Send for 5 s", "behind"),
    fault("a receive never comes", "never", says=(r"has status 13 after ",)),
    fault("24 queue pairs are idle for 12 s", "idle"),
)

# The loss is that of both directions.
table(
    perftest(", 1 % loss", "ib_write_bw", "-s 65536 -n 1000", BW, lost=200, **LOSS),
    perftest(", 1 % loss", "ib_read_bw", "-s 65536 -n 1000", BW, lost=200, **LOSS),
    perftest(", 1 % loss", "ib_send_bw", "-s 65536 -n 1000", BW, ROCE, lost=200, **LOSS),
    perftest(", 1 % loss, one receive", "ib_send_bw", "-n 500 -r 1 -t 128", BW, ROCE, lost=200, **LOSS),
    pingpong(", 1 % loss", "ibv_rc_pingpong", "-n 1000", lost=30, **LOSS),
    ucx_perftest("tag_bw", "-n 500 -s 65536", how=", 1 % loss", lost=100, **LOSS),
)
