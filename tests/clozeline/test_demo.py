"""`clozeline demo` leaves no process behind when it is stopped, and replaces what an earlier one left at a link."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    earlier = tmp_path / "earlier"
    (earlier / "run").mkdir(parents=True)
    (earlier / ".made_by_demo").touch()
    out = tmp_path / "my demo"
    out.symlink_to(earlier)

    words = [sys.executable, "-m", "clozeline", "demo", "--output", str(out), "--megabytes", "5000"]
    demo = psutil.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (out / "corpus.jsonl").exists():
        assert demo.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    [writer] = demo.children()
    assert not (earlier / "run").exists()

    demo.send_signal(number)
    _, told = demo.communicate(timeout=30)
    assert demo.returncode == 128 + number and b"Traceback" not in told
    assert not writer.is_running()
