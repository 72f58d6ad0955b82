"""A virtual machine that runs shell scripts for the host, and the processes around it: what
ci/siw, ci/nic and ci/arm share.

A subclass of `Guest` says which command starts the machine. In the guest ci/guest/agent runs the
scripts.
"""

import base64
import contextlib
import ctypes
import itertools
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass


class GuestError(Exception):
    """Something around a virtual machine failed; the text says what and what to do."""


class GuestStoodStill(GuestError):
    """The guest's processor got no time for so long that its kernel complained."""


def leave_nothing_behind():
    """Turns the signals that end a process into an exception, so that `with` blocks unwind."""

    def end(number, _frame):
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, end)


def die_with_parent():
    """Between fork and exec: the child gets SIGKILL when this process dies; Ctrl-C is ours
    alone."""
    signal_with_parent(signal.SIGKILL)
    os.setsid()


def signal_with_parent(number):
    """This process gets a signal when its parent dies."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)


def start(command, **options):
    """Starts a process that does not outlive this one."""
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen([str(word) for word in command], preexec_fn=die_with_parent, **options)


def stop(process, gently=signal.SIGTERM, patience=3):
    """Ends a process that `start` started."""
    if process.poll() is None:
        process.send_signal(gently)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def call(*command, check=True):
    """Runs a command to its end; an error has the command and what it printed."""
    done = subprocess.run(
        [str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if check and done.returncode != 0:
        raise GuestError(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


@contextlib.contextmanager
def hugepages(number):
    """Sees to it that there are so many hugepages, or as many of them as the kernel can give."""
    file = pathlib.Path("/proc/sys/vm/nr_hugepages")
    before = int(file.read_text())
    with contextlib.suppress(OSError):
        file.write_text(str(max(number, before)))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.write_text(str(before))


@dataclass
class Result:
    """The result of a script in the guest. Code 124: it took too long and was stopped."""

    code: int
    output: str

    def checked(self):
        if self.code != 0:
            raise GuestError(f"a command in the guest ended with {self.code}:\n{self.output}")
        return self.output


class Job:
    """A script that runs in the guest."""

    def __init__(self, guest, identity, timeout):
        self._guest = guest
        self._identity = identity
        self._deadline = time.monotonic() + timeout + 10
        self._done = threading.Event()
        self._result = None

    def _finish(self, result):
        self._result = result
        self._done.set()

    def wait(self):
        if not self._done.wait(max(0, self._deadline - time.monotonic())):
            console = self._guest.console()
            kind = GuestStoodStill if "soft lockup" in console else GuestError
            raise kind(f"the guest does not answer; its console said:\n{console}")
        if self._result is None:
            raise GuestError(f"the guest is gone; its console said:\n{self._guest.console()}")
        return self._result

    def running(self):
        return not self._done.is_set()

    def output(self):
        """What it has printed so far."""
        return self._guest.run(f"cat /tmp/job.{self._identity}.out").output

    def kill(self, number=signal.SIGTERM):
        self._guest.run(f"kill -{int(number)} $(cat /tmp/job.{self._identity}.pid)")


class Guest:
    """A virtual machine with ci/guest/agent in it. `with` boots it; it is gone when the `with`
    ends."""

    # Seconds from the start to the agent's first word.
    patience = 60

    def __init__(self, directory, name):
        """Its files lie in `directory` and begin with `name`."""
        self._path = directory / f"{name}.port"
        self._console = directory / f"{name}.console"
        self._jobs = {}
        self._numbers = itertools.count(1)
        self._ready = threading.Event()
        self._sending = threading.Lock()

    def _command(self, port, console):
        """The command that starts the machine: its console goes to a file, the agent's port to a
        Unix socket."""
        raise NotImplementedError

    def __enter__(self):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        listener.listen(1)
        listener.settimeout(10)
        command = self._command(self._path, self._console)
        self._qemu = start(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            self._port, _ = listener.accept()
        except TimeoutError:
            stop(self._qemu)
            raise GuestError(f"qemu does not start: {self._qemu.stderr.read().decode()}") from None
        finally:
            listener.close()
            self._path.unlink()
        threading.Thread(target=self._read_answers, daemon=True).start()
        if not self._ready.wait(self.patience):
            said = self.console()
            self.__exit__()
            raise GuestError(f"the guest does not come up; its console said:\n{said}")
        return self

    def __exit__(self, *_):
        stop(self._qemu)
        self._port.close()

    def _read_answers(self):
        with contextlib.suppress(OSError), self._port.makefile("rb") as lines:
            for line in lines:
                words = line.decode().split()
                if words == ["ready"]:
                    self._ready.set()
                elif len(words) >= 2 and int(words[0]) in self._jobs:
                    output = base64.b64decode(words[2]) if len(words) > 2 else b""
                    result = Result(int(words[1]), output.decode(errors="replace"))
                    self._jobs.pop(int(words[0]))._finish(result)
        for job in list(self._jobs.values()):
            job._finish(None)

    def spawn(self, script, timeout=60):
        """Starts a shell script in the guest; it is stopped after `timeout` seconds."""
        identity = next(self._numbers)
        job = self._jobs[identity] = Job(self, identity, timeout)
        text = base64.b64encode(script.encode()).decode()
        with self._sending:
            self._port.sendall(f"{identity} {timeout} {text}\n".encode())
        return job

    def run(self, script, timeout=60):
        """Runs a shell script in the guest to its end."""
        return self.spawn(script, timeout).wait()

    def listen(self, script, port, timeout=60):
        """Starts a server in the guest and returns when it listens on a TCP port."""
        job = self.spawn(script, timeout)
        wanted = f":{port:04X} "
        for _ in range(100):
            table = self.run("cat /proc/net/tcp /proc/net/tcp6").output
            if any(wanted in line and " 0A " in line for line in table.splitlines()):
                return job
            if not job.running():
                raise GuestError(f"'{script}' ended early:\n{job.wait().output}")
            time.sleep(0.05)
        raise GuestError(f"'{script}' does not listen on port {port}:\n{job.output()}")

    def complaint(self):
        """What the guest's kernel reports as a fault of its own, such as a WARNING or an Oops; empty
        if it does not."""
        log = self.run("dmesg").checked()
        fault = re.search(r"^.*(WARNING:|BUG:|Oops|general protection|kernel panic|refcount|soft lockup|detected stall|"
                          r"use-after-free|NETDEV WATCHDOG).*$", log, re.MULTILINE)
        return f"the guest's kernel complains:\n{log[fault.start():][:3000]}" if fault else ""

    def console(self):
        with contextlib.suppress(OSError):
            return "\n".join(self._console.read_text(errors="replace").splitlines()[-30:])
        return ""
