"""Whose a lease is: a process, told apart from any other that has or had its number."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

EXPIRES_AFTER = 120.0  # seconds without renewal: eight renewals may fail
KEPT_FOR = 7 * 86_400.0  # seconds that a kept lease lasts: nobody renews it, and an engine may work for days


@dataclass(frozen=True)
class Owner:
    """A process, distinct from any other that has or had its number.

    machine: the boot and the process namespace in which `process` means something; empty where the system has neither.
    started: when the process began, in the system's ticks.
    holds: the folder is held; before that it is only claimed.
    kept: the job may still run elsewhere, whatever became of the process.
    """

    host: str
    machine: str
    process: int
    started: str
    holds: bool = False
    kept: bool = False

    def is_gone(self) -> bool:
        """Whether the process has ended, and the job with it. False when that cannot be known from here."""
        if self.kept:
            return False

        here = this_process()
        if not here.machine or (self.host, self.machine) != (here.host, here.machine):
            return False
        return start_of(self.process) != self.started

    def lasts(self) -> float:
        """Seconds after its last renewal for which the lease is valid."""
        return KEPT_FOR if self.kept else EXPIRES_AFTER


def this_process() -> Owner:
    return Owner(socket.gethostname(), _machine(), os.getpid(), start_of(os.getpid()))


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def start_of(process: int) -> str:
    """When a process began, in ticks since boot. Empty when there is none, or only its exit status is left."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, started = fields[0], fields[19]
    return "" if state in "ZX" else started
