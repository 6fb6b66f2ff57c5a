"""A user's mistake with several ranks: one line, and one exit code for all of them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked import Command
from tests.trainer.finetune.tasks import write_task
from tests.trainer.ranks import environments

RANKS = 2

COMMANDS = """\
import sys
from trainer.finetune.cli import main
for command in sys.argv[1:]:
    code = main(command.split("|"))
    print(f"exit code {code}\\n---", file=sys.stderr, flush=True)
"""
"""Several commands in one process, whose start takes longer than they do."""

END = "---\n"


MISTAKES = {
    "a broken line": (3, "dev.jsonl line 25: the column 'label' is missing"),
    "an unknown key": (2, "unknown key training.epoch"),
    "a task file that one rank lacks": (2, "rank 1: --task"),
    "data that differ": (3, "examples.train (train.jsonl) differs between ranks. Ranks that agree: 0; 1."),
    "damaged weights": (3, "cannot be read"),
}
"""The exit code of each mistake, and what its line says."""


def flags_of_ranks(folder: Path, encoder: Path) -> dict[str, list[list[str]]]:
    """Write the files of all mistakes to `folder`, and return the flags that each rank gets."""
    good = write_task(folder / "good", "sentence", epochs=1)
    other = write_task(folder / "other", "sentence", train=50)
    broken = write_task(folder / "broken", "sentence")
    with broken.with_name("dev.jsonl").open("a") as file:
        file.write('{"text": "No label."}\n')

    no_weights = Path(shutil.copytree(encoder, folder / "no_weights"))
    (no_weights / "model.safetensors").write_bytes(b"damaged")

    output = ["--output", str(folder / "out")]
    fine = [str(encoder), "--task", str(good), *output]
    return {
        "a broken line": [[str(encoder), "--task", str(broken), *output]] * RANKS,
        "an unknown key": [[*fine, "--set", "training.epoch=1"]] * RANKS,
        "a task file that one rank lacks": [fine, [str(encoder), "--task", str(folder / "nothing.toml"), *output]],
        "data that differ": [fine, [*fine, "--data", str(other.parent)]],
        "damaged weights": [[str(no_weights), "--task", str(good), *output]] * RANKS,
    }


@pytest.fixture(scope="module")
def endings(encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each rank wrote to stderr about each mistake, with its exit code as the last line."""
    flags = flags_of_ranks(tmp_path_factory.mktemp("mistakes"), encoder("bert"))
    processes = []
    for rank, environment in enumerate(environments(RANKS)):
        commands = ["|".join(flags[name][rank]) for name in MISTAKES]
        words = ["python", "-m", "tests.run_code", COMMANDS, *commands]
        processes.append(Command(words, environment | {"DS_ACCELERATOR": "cpu"}, stderr=subprocess.PIPE))

    endings: dict[str, list[str]] = {name: [] for name in MISTAKES}
    for process in processes:
        errors = process.communicate(timeout=400)[1]
        parts = errors.split(END)[:-1]
        assert len(parts) == len(MISTAKES), errors
        for name, part in zip(MISTAKES, parts, strict=True):
            endings[name].append(part)
    return endings


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_one_exit_code(endings: dict[str, list[str]], name: str) -> None:
    code, message = MISTAKES[name]
    lines = [part.strip().splitlines() for part in endings[name]]
    assert [of_rank[-1] for of_rank in lines] == [f"exit code {code}"] * RANKS

    errors = [line for of_rank in lines for line in of_rank[:-1]]
    assert len(errors) == 1, errors
    assert errors[0].startswith("clozeline: ") and message in errors[0]
