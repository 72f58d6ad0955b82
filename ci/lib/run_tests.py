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

# What cargo sets, but for the programs that build scripts run.
ENVIRONMENT = {name: value for name, value in tomllib.loads((ROOT / ".cargo" / "config.toml").read_text())["env"].items()
               if isinstance(value, str)}


def programs(messages):
    """The name, the path and the package's directory of each test program."""
    for message in map(json.loads, messages):
        if message.get("executable") and message["profile"]["test"]:
            directory = pathlib.Path(message["manifest_path"]).parent
            yield message["target"]["name"], message["executable"], directory


def run(name, program, directory, words):
    """Runs a program as cargo does; returns whether it ends well."""
    environment = {**ENVIRONMENT, **os.environ, "CARGO_MANIFEST_DIR": str(directory)}
    process = start([program, *words], cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = process.communicate()
    end = "" if process.returncode == 0 else f"FAILED: {name} of {directory.name} ends with {process.returncode}\n"
    sys.stdout.write(f"     Running {name} of {directory.name} {' '.join(words)}\n{said.decode(errors='replace')}{end}")
    sys.stdout.flush()
    return not end


def main():
    found = list(programs(sys.stdin))
    missing = {*FIRST, *SLOW} - {name for name, *_ in found}
    if missing:
        sys.exit(f"ci/lib/run_tests.py: no tests {', '.join(sorted(missing))}")
    found.sort(key=lambda each: each[0] not in FIRST)
    jobs = [(*each, []) for each in found] + [(*each, ["--ignored"]) for each in found if each[0] in SLOW]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() + 1) as pool:
        ends = list(pool.map(lambda job: run(*job), jobs))
    sys.exit(0 if all(ends) else 1)


if __name__ == "__main__":
    main()
