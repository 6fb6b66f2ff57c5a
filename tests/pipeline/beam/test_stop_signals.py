"""Signals that end a command, and those that the user has it ignore."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
from pipeline.beam import stop_signals
signal.signal(signal.{0}, signal.{1})
try:
    with stop_signals.as_interrupts():
        os.kill(os.getpid(), signal.{0})
    print("went on", signal.getsignal(signal.{0}) == signal.{1})
except KeyboardInterrupt:
    print("stopped", signal.getsignal(signal.{0}) == signal.{1})
"""


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM"])
@pytest.mark.parametrize(("handler", "ended"), [("SIG_DFL", "stopped"), ("SIG_IGN", "went on")])
def test_a_signal_that_the_command_was_told_to_ignore_does_not_stop_it(name, handler, ended) -> None:
    """`nohup` starts a command with SIGHUP ignored, so that it outlives its terminal."""
    program = PROGRAM.format(name, handler)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == f"{ended} True\n", done
