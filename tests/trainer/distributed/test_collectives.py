"""What the ranks of a run must have in common, and what a user is told if they have not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.forked import Command
from tests.trainer.ranks import environments
from trainer.distributed.collectives import differences_of, facts_of_code, listed


def told_by_ranks(*flags_of_ranks: list[str]) -> list[str]:
    """Run two ranks with different flags, and return the lines that they wrote to stderr, their exit codes last."""
    commands = [
        Command(["python", "-m", "trainer", *flags], environment, stderr=subprocess.PIPE)
        for flags, environment in zip(flags_of_ranks, environments(2), strict=True)
    ]
    told = [command.communicate()[1] for command in commands]
    return [*"".join(told).splitlines(), *(f"exit code {command.returncode}" for command in commands)]


@pytest.mark.timeout(300)
def test_ranks_with_other_recipes_or_data_are_refused_before_the_first_step(
    training, pairs: Path, held_out: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    copied = shutil.copytree(pairs, tmp_path / "elsewhere")
    usual = training.flags(out, run__stop_at=4)
    other = {"optimizer__lr": 1e-5, "run__seed": 9, "data__pairs": held_out}
    recipe = told_by_ranks(usual, training.flags(out, run__stop_at=4, **other))
    ended = told_by_ranks(usual, training.flags(out, run__stop_at=4, data__pairs=copied))
    seed = told_by_ranks(usual, training.flags(out, run__seed=9))

    assert recipe[1:] == ["exit code 2"] * 2, recipe
    assert recipe[0].startswith("clozeline: The ranks do not begin with the same: ")
    assert "run.seed is 0 on rank 0, but 9 on rank 1" in recipe[0]
    assert "optimizer.lr is 0.003 on rank 0, but 1e-05 on rank 1" in recipe[0]
    assert "data.pairs is fingerprint " in recipe[0]

    assert ended == ["exit code 0"] * 2, "the same data may lie at another path"
    assert seed[1:] == ["exit code 2"] * 2, "a resume is compared, too"
    assert "run.seed is 0 on rank 0, but 9 on rank 1" in seed[0]
    assert "optimizer.lr" not in seed[0] and "data.pairs" not in seed[0]


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
