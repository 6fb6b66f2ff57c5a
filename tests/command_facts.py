"""Prints what a command finds when it starts, as JSON, for test_forked.py, and then ends as its words say.

python -m tests.command_facts [exit:CODE | raise | interrupt | say:WORDS | wait | start:ONE_OF_THESE] [--torch]
"""

from __future__ import annotations

import atexit
import gc
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import numpy


def facts() -> dict[str, object]:
    return {
        "argv": sys.argv[1:],
        "program": os.path.relpath(sys.argv[0]),
        "main": vars(sys.modules["__main__"])["facts"] is facts,
        "path": sys.path[:2],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "stdin": sys.stdin.read(),
        "threads": threading.active_count(),
        "children": len(multiprocessing.active_children()),
        "descriptors": open_descriptors(),
        "leads its session": os.getsid(0) == os.getpid(),
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        "garbage": gc.isenabled(),
        "optimize": sys.flags.optimize,
    }


def open_descriptors() -> list[int]:
    """Return those of anything but the null device, by which forks of commands replace what they may not have."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            if int(name) < 3 or os.readlink(f"/proc/self/fd/{name}") != os.devnull:
                found.append(int(name))
    return sorted(found)


if __name__ == "__main__":
    found = facts()
    drawn: list[float] = []
    if "--torch" in sys.argv:
        import torch

        found["torch"] = [torch.get_num_threads(), str(torch.get_default_dtype()), torch.is_grad_enabled()]
        drawn = [torch.rand(1).item()]
    own = {"random": [*drawn, numpy.random.random(), random.random()], "pid": os.getpid()}
    atexit.register(print, "at exit")
    print(json.dumps([found, own]), flush=True)
    print("to stderr", file=sys.stderr)
    action, _, value = sys.argv[1].partition(":")
    if action == "exit":
        threading.Thread(target=lambda: (time.sleep(0.05), print("a thread ends"))).start()
        raise SystemExit(int(value))
    if action == "start":
        os.environ["PYTHONSAFEPATH"] = "1"  # as all commands of the project do
        raise SystemExit(subprocess.call([sys.executable, "-u", "-m", "tests.command_facts", value]))
    if action == "say":
        raise SystemExit(value)
    if action == "raise":
        raise ValueError("as asked")
    if action == "interrupt":
        signal.raise_signal(signal.SIGINT)
    if action == "wait":
        time.sleep(300)
