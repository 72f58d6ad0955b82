"""Programs that connect their queue pairs themselves, where something goes wrong: an end is killed,
a receive comes late or never, frames are lost."""

from programs import Case, table


def fault(name, which, **how):
    line = f"{{own}}/faults %s {{server}} {{device}} {which}"
    return Case(f"{name}, self-connected", line % "client", line % "server", port=18600, kernel=True, **how)


table(
    fault("an end is killed", "killed", server_code=-9, says=(r"^status 12 after ",)),
    fault("an end is killed while the other reads", "killed-reading", server_code=-9, says=(r"^\d+ Reads, then status 12",)),
    fault("both read before they receive", "reads"),
    fault("an end reads before it receives", "reads-late"),
    fault("a shared receive queue is dry for 5 s", "dry", server_says=(r"^15 messages; dry for 5",)),
    fault("a receive comes after 5 s", "late"),
    fault("requests wait behind a Send for 5 s", "behind"),
    fault("a receive never comes", "never", says=(r"has status 13 after ",)),
    fault("nothing is sent for 12 s", "idle"),
)
