#!/usr/bin/env python3
"""Runs test programs, some at once, and prints what each has said when it ends. Code 1 if one fails.

It reads cargo's messages: cargo test --no-run --message-format=json-render-diagnostics. `cargo test`
would run one program behind the other, and wait for others that use cargo's directory.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tomllib

from machine import start

ROOT = pathlib.Path(__file__).resolve().parents[2]

# They take the longest, most of it waiting.
FIRST = ("sharing", "in_memory", "objects", "systemd", "veth", "engine", "impaired")
# Those of their tests that are ignored take long, and no more than that.
SLOW = ("rnic_core", "words", "receiver_not_ready")

# They run over the kernel's sockets too, but for the tests of these options: sockets have other
# errors for peers that refuse, and no interface to hold.
BY_SOCKETS = {
    "verbs": ["--skip=what_a_forked_process_inherits"],
    "cm": ["--skip=a_peer_is_rejected_with_private_data_or_refused", "--skip=a_peer_whose_connection_lives_waits"],
    "rsocket": [],
}

# What cargo sets, but for the programs that build scripts run.
ENVIRONMENT = {name: value for name, value in tomllib.loads((ROOT / ".cargo" / "config.toml").read_text())["env"].items()
               if isinstance(value, str)}


def programs(messages):
    """The name, the path and the package's directory of each test program."""
    for message in map(json.loads, messages):
        if message.get("executable") and message["profile"]["test"]:
            directory = pathlib.Path(message["manifest_path"]).parent
            yield message["target"]["name"], message["executable"], directory


def run(name, program, directory, words, **more):
    """Runs a program as cargo does, with more in its environment; returns whether it ends well."""
    environment = {**ENVIRONMENT, **os.environ, "CARGO_MANIFEST_DIR": str(directory), **more}
    process = start([program, *words], cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = process.communicate()
    end = "" if process.returncode == 0 else f"FAILED: {name} of {directory.name} ends with {process.returncode}\n"
    how = " ".join([*map("=".join, more.items()), *words])
    sys.stdout.write(f"     Running {name} of {directory.name} {how}\n{said.decode(errors='replace')}{end}")
    sys.stdout.flush()
    return not end


def main():
    found = list(programs(sys.stdin))
    missing = {*FIRST, *SLOW, *BY_SOCKETS} - {name for name, *_ in found}
    if missing:
        sys.exit(f"ci/lib/run_tests.py: no tests {', '.join(sorted(missing))}")
    found.sort(key=lambda each: each[0] not in FIRST)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() + 1) as pool:
        jobs = [pool.submit(run, *each, []) for each in found]
        jobs += [pool.submit(run, *each, ["--ignored"]) for each in found if each[0] in SLOW]
        jobs += [pool.submit(run, *each, BY_SOCKETS[each[0]], RNIC_VIA="kernel") for each in found if each[0] in BY_SOCKETS]
    ends = [job.result() for job in jobs]
    sys.exit(0 if all(ends) else 1)


if __name__ == "__main__":
    main()
