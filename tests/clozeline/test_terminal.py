"""What commands show on a real terminal: one line of progress, which leaves no trace, and plain lines elsewhere."""

import json
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.forked import Command
from tests.trainer.conftest import SHRUNK

COLOR = re.compile(r"\x1b\[\d+m")


def on_terminal(words: Sequence[object], until: str = "", **environment: str) -> tuple[int, str]:
    """Run a command on a terminal; press Ctrl-C once it has written `until`. Returns its exit code and all it wrote."""
    ours, theirs = os.openpty()
    with open(ours, "rb", buffering=0) as screen:
        process = Command(words, os.environ | environment, stdout=theirs, stderr=theirs)
        os.close(theirs)
        written = ""
        is_pressed = not until
        while data := read(screen):
            written += data.decode()
            if not is_pressed and until in written:
                process.send_signal(signal.SIGINT)
                is_pressed = True
    return process.wait(60), written


def read(screen) -> bytes:
    try:
        return screen.read(65536)
    except OSError:  # the last process on the terminal has ended
        return b""


def lines_on(written: str) -> list[str]:
    """The lines that a user sees in the end. A carriage return goes to the beginning of its line."""
    lines = []
    for line in COLOR.sub("", written).replace("\r\n", "\n").split("\n"):
        seen = ""
        for part in line.split("\r"):
            seen = part + seen[len(part) :]
        lines.append(seen.rstrip())
    return lines[:-1] if lines[-1] == "" else lines


def test_a_job_on_a_terminal(corpus: Path, tmp_path: Path) -> None:
    shard = ["python", "-m", "pipeline", "shard", "--input", corpus, "--output"]
    code, written = on_terminal([*shard, tmp_path / "text", "--num_shards", "5"])
    assert code == 0
    assert "%" not in written, "of one piece, a share is 0 until all is done"
    assert lines_on(written)[0].startswith(f"{tmp_path}/text: 120 documents")

    vocab = ["python", "-m", "pipeline", "vocab", "--text", tmp_path / "text", "--output", tmp_path / "vocab"]
    code, written = on_terminal([*vocab, "--model", "wordpiece", "--size", "300"])
    assert code == 0
    assert re.search(r"\rvocab: +0%\|\x1b\[32m.*B/s\]", written)

    code, written = on_terminal([*shard, tmp_path / "again", "--language", "xx"], NO_COLOR="1")
    assert code == 2 and "\x1b" not in written
    assert len(lines_on(written)) == 1


def training_of(pairs: Path, out: Path) -> list[str]:
    values = SHRUNK | {"data.pairs": pairs, "run.output": out, "run.max_steps": 5000, "checkpoint.every": 5000}
    sets = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    return ["--config", "tests/recipes/small_bert.toml", *sets]


ON_ITS_OWN_TERMINAL = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("trainer", run_name="__main__")
"""


def test_a_run_whose_terminal_is_closed_saves(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ours, theirs = os.openpty()
    words = ["python", "-m", "tests.run_code", ON_ITS_OWN_TERMINAL, *training_of(pairs, out)]
    process = Command(words, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = ""
    while ", loss " not in written and (data := os.read(ours, 65536)):
        written += data.decode(errors="replace")
    os.close(ours)
    assert process.wait(60) == 75, written
    assert len(list((out / "checkpoints").iterdir())) == 1
    assert "asked to stop; step " in (out / "log.txt").read_text()


def test_training_on_a_terminal_and_its_log(run, pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train = ["python", "-m", "trainer", *training_of(pairs, out)]

    code, written = on_terminal(train, until=r", loss ", TERM="xterm")
    lines = lines_on(written)
    assert code == 75
    assert [line for line in lines if line.startswith("bert: ") and " parameters, " in line]
    assert [line for line in lines if re.fullmatch(r"  length  5,000 steps of 16 rows: .* passes over the data", line)]
    *before, bar = [line for line in lines if line.startswith("train: ")]
    assert len(before) == 1 and lines[lines.index(before[0]) + 1].startswith("clozeline: interrupted: saving ")
    assert re.search(r"\| \d+/5000 \[.*steps/s, loss \d+\.\d{4}\]$", bar)
    saved = re.fullmatch(rf"clozeline: {out}: asked to stop; step (\d+) of 5000 is saved\. .*", lines[-1])
    assert saved and lines[-2] == bar

    log = (out / "log.txt").read_text()
    assert not re.search(r"[\r\x1b]", log)
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in log.splitlines())
    assert log.endswith(f"  {lines[-1]}\n")
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [int(step) for step in re.findall(r"  step (\d+)  loss ", log)] == steps

    done = run(*train, "--set", f"run.stop_at={int(saved[1]) + 1}")
    assert done.returncode == 0, done.stderr
    assert not re.search(r"[\r\x1b]|parameters, ", done.stdout + done.stderr)
    appended = (out / "log.txt").read_text().removeprefix(log)
    assert all(line in appended for line in done.stdout.splitlines())
    assert "parameters, " in appended and len(appended) < len(log) + 2000
