"""`clozeline suite` as a user runs it: one table, the same whether or not it was killed on the way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import transformers

from tests import forked
from tests.trainer.data.node_cache.shards import until
from trainer.suite.tables import STATISTICS


def words(folder: Path, suite: Path, output: Path, *more: str) -> list[str]:
    command = ["clozeline", "suite", f"first={folder}", "--suite", str(suite), "--output", str(output)]
    return [*command, "--workers", "2", *more]


def without_times(output: Path) -> tuple[str, dict[str, Any]]:
    """Return table.md without times and results.json without hours."""
    lines = (output / "table.md").read_text().splitlines()
    columns = len(STATISTICS) + 3
    table = ["|".join(line.split("|")[:-2]) if line.count("|") == columns + 1 else line for line in lines]

    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cleaned(inner) for key, inner in value.items() if key != "hours"}
        return [cleaned(inner) for inner in value] if isinstance(value, list) else value

    return "\n".join(table), cleaned(json.loads((output / "results.json").read_text()))


@pytest.mark.timeout(900)
def test_a_killed_suite_ends_with_the_same_table(
    masked_lm: Callable[[int], Path], suite_file: Path, tmp_path: Path
) -> None:
    """Twice: first SIGKILL to the suite alone, whose jobs must end with it, then SIGTERM, after which they save."""
    states = ["--set", "training.save_every=1", "--seeds", "2"]
    straight = tmp_path / "straight"
    done = forked.run(words(masked_lm(0), suite_file, straight, *states), timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("first/subjects", "first/order"):
        assert re.search(rf"^{name}: done \(\d of 4\): accuracy \d\.\d{{4}}, ", done.stdout, re.MULTILINE), done.stdout

    broken = tmp_path / "broken"
    command = words(masked_lm(0), suite_file, broken, *states)
    process = forked.Command(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until(lambda: list(broken.glob("folders/first/tags/seed-*/checkpoint-*")), 200)
    jobs = psutil.Process(process.pid).children()
    assert jobs
    process.kill()
    process.communicate()
    until(lambda: not any(job.is_running() and job.status() != psutil.STATUS_ZOMBIE for job in jobs), 20)

    process = forked.Command(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until(lambda: list(broken.glob("folders/first/verbs/seed-*/checkpoint-*")), 200)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 75, output
    assert "The same command continues" in output
    assert "not done" in (broken / "table.md").read_text()

    done = forked.run(command, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first/subjects: done before" in done.stdout
    assert without_times(broken) == without_times(straight)

    table = (broken / "table.md").read_text()
    assert re.search(r"\| subjects \| accuracy \| [\d.]+( †)? \|", table)
    assert re.search(r"\| order \| accuracy \| [\d.]+ \|", table)
    assert "| average | of 3 |" in table
    page = (broken / "report.html").read_text()
    assert "word order" in page and not re.search(r"https?:|src=", page)


@pytest.mark.timeout(600)
def test_failing_jobs_end_no_other(masked_lm: Callable[[int], Path], suite_file: Path, tmp_path: Path) -> None:
    """A damaged file, and an encoder without a head, which cannot judge minimal pairs."""
    dev = suite_file.parent / "subjects/dev.jsonl"
    sound = dev.read_text()
    dev.write_text('{"text": "The cat sees.", "label": "neither"}\n')
    bare = tmp_path / "bare"
    transformers.AutoModel.from_pretrained(masked_lm(0)).save_pretrained(bare)
    transformers.AutoTokenizer.from_pretrained(masked_lm(0)).save_pretrained(bare)
    output = tmp_path / "out"
    done = forked.run(words(bare, suite_file, output, "--seeds", "1"), timeout=400)
    assert done.returncode == 1, done.stderr
    assert "3 of 4 jobs failed" in done.stderr and "Traceback" not in done.stderr

    table = (output / "table.md").read_text()
    [subjects, verbs, order] = [line for line in table.splitlines() if line.startswith("- ")]
    assert subjects.startswith("- first/subjects: ") and "neither" in subjects
    assert verbs == "- first/verbs: not started, because first/subjects failed"
    assert order.startswith(f"- first/order: {bare} cannot judge minimal pairs: it has no head")
    assert re.search(r"\| tags \| chunk_f1 \| [\d.]+( †)? \|", table)
    assert "| average | of 3 | - |" in table

    dev.write_text(sound)
    done = forked.run(words(bare, suite_file, output, "--seeds", "1"), timeout=400)
    assert "1 of 4 jobs failed" in done.stderr, done.stderr


@pytest.mark.timeout(300)
def test_ctrl_c_ends_everything(masked_lm: Callable[[int], Path], suite_file: Path, tmp_path: Path) -> None:
    command = words(masked_lm(0), suite_file, tmp_path / "out")
    process = forked.Command(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until(lambda: len(psutil.Process(process.pid).children()) == 2, 200)
    jobs = psutil.Process(process.pid).children()
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert not any(psutil.pid_exists(job.pid) for job in jobs)
