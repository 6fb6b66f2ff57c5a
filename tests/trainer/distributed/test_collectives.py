"""What the ranks of a run must have in common, and what a user is told if they have not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.ranks import environments
from trainer.distributed.collectives import differences_of, facts_of_code, listed

RUNS = """\
import sys
from trainer.cli import main
for command in sys.argv[1:]:
    code = main(command.split("|"))
    print(f"exit code {code}\\n---", file=sys.stderr, flush=True)
"""
"""Several runs in one process, whose start takes longer than they do."""


def told_by_ranks(commands: list[tuple[list[str], list[str]]]) -> list[list[str]]:
    """What both ranks wrote to stderr about each run, given the flags of each rank."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RUNS, *("|".join(flags[rank]) for flags in commands)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, environment in enumerate(environments(2))
    ]
    parts = [process.communicate()[1].split("---\n")[:-1] for process in processes]
    return [[line for part in of_run for line in part.splitlines()] for of_run in zip(*parts, strict=True)]


@pytest.mark.timeout(300)
def test_ranks_with_other_recipes_or_data_are_refused_before_the_first_step(
    training, pairs: Path, held_out: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    copied = shutil.copytree(pairs, tmp_path / "elsewhere")
    usual = training.flags(out, run__stop_at=4)
    recipe, data, ended, seed = told_by_ranks(
        [
            (usual, training.flags(out, run__stop_at=4, optimizer__lr=1e-5, run__seed=9)),
            (usual, training.flags(out, run__stop_at=4, data__pairs=held_out)),
            (usual, training.flags(out, run__stop_at=4, data__pairs=copied)),
            (usual, training.flags(out, run__seed=9)),
        ]
    )

    assert recipe[1:] == ["exit code 2"] * 2, recipe
    assert recipe[0].startswith("clozeline: The ranks do not begin with the same: ")
    assert "run.seed is 0 on rank 0, but 9 on rank 1" in recipe[0]
    assert "optimizer.lr is 0.003 on rank 0, but 1e-05 on rank 1" in recipe[0]

    assert data[1:] == ["exit code 2"] * 2, data
    assert "data.pairs is fingerprint " in data[0] and "optimizer.lr" not in data[0]

    assert ended == ["exit code 0"] * 2, "the same data may lie at another path"
    assert seed[1:] == ["exit code 2"] * 2, "a resume is compared, too"
    assert "run.seed is 0 on rank 0, but 9 on rank 1" in seed[0]


def test_ranks_are_grouped_by_value_and_listed_as_ranges() -> None:
    facts = [{"a": "1", "b": "x"}] * 3 + [{"a": "2", "b": "x"}, {"b": "x"}]
    assert differences_of(facts) == {"a": {"1": [0, 1, 2], "2": [3], "unset": [4]}}
    assert listed([0, 1, 2, 3, 7, 9, 10]) == "0 to 3, 7, 9, 10"


def test_another_file_of_the_code_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/step.py").write_text("a = 1\n")
    monkeypatch.setattr("trainer.distributed.collectives.SOURCES", tmp_path)
    before = facts_of_code()
    (tmp_path / "trainer/step.py").write_text("a = 2\n")
    assert list(differences_of([before, facts_of_code()])) == ["Clozeline's code (a hash of its files)"]
