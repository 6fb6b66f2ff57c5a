"""The owner of a lease: a process, identified such that a reused process id is not mistaken for it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

EXPIRES_AFTER = 120.0  # seconds without renewal: eight renewals may fail
KEPT_FOR = 7 * 86_400.0  # seconds that a kept lease lasts: no process renews it, and an engine may work for days


@dataclass(frozen=True)
class Owner:
    """A process, identified such that a reused process id is not mistaken for it.

    machine: the boot id and process namespace in which `process` is valid; empty if the system has neither.
    process: the process id.
    started: when the process began, in clock ticks since boot.
    holds: the folder is held; before that it is only claimed.
    kept: the job may still run elsewhere, even if the process is gone.
    left: no launcher waits for the job any longer.
    published: the job's result is in place.
    """

    host: str
    machine: str
    process: int
    started: str
    holds: bool = False
    kept: bool = False
    left: bool = False
    published: bool = False

    def is_gone(self) -> bool:
        """Whether the process has ended, and the job with it. False if that cannot be determined on this machine."""
        return not self.kept and self.has_ended()

    def has_ended(self) -> bool:
        """Whether the process has ended. False if that cannot be determined on this machine."""
        here = this_process()
        same_machine = here.machine != "" and (self.host, self.machine) == (here.host, here.machine)
        return same_machine and start_of(self.process) != self.started

    def lasts(self) -> float:
        """Return for how many seconds after its last renewal the lease is valid."""
        return KEPT_FOR if self.kept else EXPIRES_AFTER


def this_process() -> Owner:
    """Return the owner that stands for the calling process, which claims a folder but does not hold it yet."""
    process = os.getpid()
    return Owner(socket.gethostname(), _machine(), process, start_of(process))


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def start_of(process: int) -> str:
    """Return when a process began, in clock ticks since boot. Empty if it does not exist or is a zombie."""
    try:
        # "PID (NAME) STATE ...": the name may hold spaces and parentheses, so fields are counted from its end.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""

    state = fields[0]
    started = fields[19]
    is_dead = state in "ZX"  # a zombie, or being removed
    return "" if is_dead else started
