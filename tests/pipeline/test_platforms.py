"""The pipeline needs nothing of Linux: it runs without what Python lacks on macOS or Windows."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Run

WITHOUT_LINUX = """
import os, signal, sys
import numpy  # on Linux it asks for os.uname

for module in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[module] = None  # an import of it fails
for name in ("fork", "getuid", "posix_fallocate", "sched_getaffinity", "setsid", "sysconf", "uname"):
    delattr(os, name)
del signal.SIGHUP, signal.SIGKILL
for name in list(sys.modules):  # they are imported again, but for the one whose flags Beam has registered
    if name.partition(".")[0] in ("pipeline", "schemas") and name != "pipeline.beam.engines":
        del sys.modules[name]
from schemas import host_limits
host_limits.PROC = host_limits.CGROUP = host_limits.PROC / "missing"
from pipeline.cli import main

folder, corpus = sys.argv[1:]
jobs = (
    ("shard", "--input", corpus, "--output", "text", "--num_shards", "3"),
    ("vocab", "--text", "text", "--output", "vocab", "--model", "wordpiece", "--size", "160"),
    ("pairs", "--text", "text", "--vocab", "vocab", "--output", "pairs", "--objective", "nsp", "--max_length", "32"),
)
os.chdir(folder)
sys.exit(any(main(list(words)) for words in jobs))
"""


def test_jobs_run_without_linux_and_write_the_same(
    run: Run, corpus: Path, text: Path, vocab: Path, pairs: Path, tmp_path: Path
) -> None:
    done = run("python", "-m", "tests.run_code", WITHOUT_LINUX, tmp_path, corpus)
    assert done.returncode == 0, done.stderr[-3000:]

    for name, usual in (("text", text), ("vocab", vocab), ("pairs", pairs)):
        written, expected = (json.loads((folder / "manifest.json").read_text()) for folder in (tmp_path / name, usual))
        assert written["fingerprint"] == expected["fingerprint"], name
