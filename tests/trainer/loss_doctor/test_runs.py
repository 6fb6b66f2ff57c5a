"""Real runs: one that cannot learn is told why, one that can is not, and a resume is told the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

STUCK = {
    "optimizer__lr": 1e-9,
    "run__max_steps": 60,
    "run__log_every": 10,
    "checkpoint__every": 1000,
    "batch__micro_batch": 8,
}


def lines_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def easy_pairs(command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of one word each, many times: any word of a row tells all others."""
    folder = tmp_path_factory.mktemp("easy")
    rng = random.Random(0)
    words = ["".join(rng.choices("bcdfgklmnprst", k=2)) + "a" for _ in range(20)]
    documents = [". ".join(" ".join([word] * length) for length in range(6, 20)) + "." for word in words * 10]
    # No two are equal.
    lines = [json.dumps({"text": f"{text} {number}."}) for number, text in enumerate(documents)]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")

    text, vocab, pairs = (folder / name for name in ("text", "vocab", "pairs"))
    for words_of_command in (
        ("shard", "--input", folder / "corpus.jsonl", "--output", text, "--num_shards", 2),
        ("vocab", "--text", text, "--output", vocab, "--model", "wordpiece", "--size", 150),
        ("pairs", "--text", text, "--vocab", vocab, "--output", pairs, "--objective", "nsp", "--max_length", 32),
    ):
        done = command(*words_of_command)
        assert done.returncode == 0, done.stderr
    return pairs


def test_a_run_that_cannot_learn_is_told_why_and_so_is_its_resume(training, held_out, tmp_path: Path) -> None:
    """On two ranks that share the weights, which both must compute the last layer together."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    changes = STUCK | {"engine__zero_stage": 3, "evaluation__pairs": held_out, "evaluation__every": 25}
    done = training.warm(2, whole, **changes)
    assert done.returncode == 0, done.stderr
    told = [line for line in (done.stdout + done.stderr).splitlines() if "no better than" in line]
    assert len(told) == 1 and "step 50" in told[0] and "learning rate low" in told[0]

    lines = lines_of(whole)
    assert {line["step"]: line.get("loss_doctor") for line in lines if "loss_doctor" in line} == {
        50: "learning_rate_low"
    }
    assert len({line["unigram_loss"] for line in lines}) == 1
    assert all(line["mlm_loss_masked"] > line["unigram_loss"] for line in lines)

    evaluated = next(line for line in lines if line["step"] == 50)
    assert evaluated["eval_mlm_loss_masked"] > evaluated["eval_unigram_loss"] > 0
    assert evaluated["eval_span_mlm_loss_masked"] > 0

    page = (whole / "report.html").read_text()
    assert "Likely cause: learning rate low" in page and "word frequencies alone" in page

    for stop in (33, 60):
        assert training.warm(2, resumed, **changes, run__stop_at=stop).returncode == 0
    assert training.losses(resumed) == training.losses(whole)


def test_a_run_that_learns_is_told_nothing(training, easy_pairs: Path, tmp_path: Path) -> None:
    changes = STUCK | {"optimizer__lr": 5e-3, "run__max_steps": 200, "data__pairs": easy_pairs}
    done = training.warm(1, tmp_path / "run", **changes, model__hidden_dropout_prob=0)
    assert done.returncode == 0, done.stderr
    last = lines_of(tmp_path / "run")[-1]
    assert last["mlm_loss_masked"] < last["unigram_loss"] - 0.1
    assert "word frequencies alone" not in done.stdout + done.stderr


def test_without_held_out_pairs_the_training_loss_decides(training, tmp_path: Path) -> None:
    """100/0/0: no place is kept and none is random, and the mean over all places is that at [MASK]."""
    out = tmp_path / "run"
    done = training.warm(1, out, **STUCK, masking__replacement="100/0/0")
    assert done.returncode == 0, done.stderr
    lines = lines_of(out)
    assert [line["step"] for line in lines if "loss_doctor" in line] == [50]
    assert all(line["mlm_loss_kept"] is None and line["mlm_loss_random"] is None for line in lines)
    assert all(line["mlm_loss_masked"] == pytest.approx(line["mlm_loss"]) for line in lines)


def test_no_place_of_causal_language_modeling_has_a_kind(training, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = training.warm(1, out, objective__kind="clm", run__max_steps=4)
    assert done.returncode == 0, done.stderr
    assert all("mlm_loss_masked" not in line and line["unigram_loss"] > 0 for line in lines_of(out))


def test_causal_language_modeling_is_examined_by_its_own_loss(training, held_out, tmp_path: Path) -> None:
    """Evaluations predict masked tokens, which a causal phase does not learn, so their loss says nothing about it."""
    out = tmp_path / "run"
    changes = STUCK | {"objective__kind": "clm", "evaluation__pairs": held_out, "evaluation__every": 50}
    learning = changes | {"optimizer__lr": 5e-3, "run__max_steps": 200}
    done = training.warm(1, out, **learning, model__hidden_dropout_prob=0)
    assert done.returncode == 0, done.stderr
    last = lines_of(out)[-1]
    assert last["mlm_loss"] < last["unigram_loss"] - 0.1
    assert last["eval_mlm_loss_masked"] > last["eval_unigram_loss"]
    assert not [line for line in lines_of(out) if "loss_doctor" in line], done.stderr

    stuck = training.warm(1, tmp_path / "stuck", **changes)
    assert "learning rate low" in stuck.stdout + stuck.stderr
