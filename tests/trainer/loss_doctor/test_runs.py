"""Real runs: one that cannot learn is told why, one that can is not, and a resume is told the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from trainer.checkpoint.format import checkpoint_path, read_state
from trainer.metrics.log import TIMED

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
    changes |= {"evaluation__all_kinds": "true"}
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


def interrupting(step: int, evaluations: int) -> str:
    """A signal in the middle of the evaluation after `step`, the first but for `evaluations`, on one rank."""
    # A step has two micro-batches. So has each of the four batches of an evaluation.
    forward = 2 * step + 2 * 4 * evaluations + 2
    return f"ask:0:{forward}:{forward}"


def timeless(out: Path) -> list[list[tuple[str, Any]]]:
    """What a run logged, in order, but for times."""
    return [[(name, value) for name, value in line.items() if name not in TIMED] for line in lines_of(out)]


def examined_at(out: Path, step: int) -> int:
    return read_state(checkpoint_path(str(out), step)).examined_step


def told_by(done: Any) -> list[str]:
    return [line[line.index("step ") :] for line in done.stdout.splitlines() if "no better than" in line]


def test_a_run_is_told_the_same_if_a_signal_interrupted_the_evaluation_that_tells_it(
    training, held_out, tmp_path: Path
) -> None:
    """Its evaluation is rerun on resume, and so the examination of its figures, with the sums of the same interval."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    changes = STUCK | {"evaluation__pairs": held_out, "evaluation__every": 25, "checkpoint__every": 50}
    whole = training.warm(1, straight, **changes)
    assert whole.returncode == 0 and len(told_by(whole)) == 1, whole.stdout + whole.stderr

    done = training.warm(1, broken, interrupting(50, evaluations=1), **changes)
    assert done.returncode == 75 and not told_by(done), done.stderr
    assert not [line for line in lines_of(broken) if "loss_doctor" in line]

    # Interrupted once more, which changes nothing.
    done = training.warm(1, broken, interrupting(0, evaluations=0), **changes)
    assert done.returncode == 75 and not told_by(done), done.stderr

    # As if step 50 were the last one.
    done = training.warm(1, broken, **changes, run__stop_at=50)
    assert done.returncode == 0 and told_by(done) == told_by(whole), done.stderr
    assert timeless(broken) == timeless(straight)[: len(lines_of(broken))] and lines_of(broken)[-1]["step"] == 50
    assert examined_at(broken, 50) == examined_at(straight, 50) == 50

    done = training.warm(1, broken, **changes)
    assert done.returncode == 0 and not told_by(done), done.stderr
    assert timeless(broken) == timeless(straight)
    assert examined_at(broken, 60) == examined_at(straight, 60) == 50


def test_an_evaluation_between_phases_is_rerun_and_examined_in_the_phase_that_ended(
    training, held_out, tmp_path: Path
) -> None:
    """Its kind of masks and its words are not those of the next phase."""
    recipe = tmp_path / "phases.toml"
    phases = '[[phases]]\nsteps = 50\n\n[[phases]]\nsteps = 10\nmasking = { kind = "span", prob = 0.4 }\n'
    recipe.write_text(Path("tests/recipes/small_bert.toml").read_text() + "\n" + phases)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    changes = STUCK | {"config": recipe, "evaluation__pairs": held_out, "evaluation__every": 25}
    whole = training.warm(1, straight, **changes)
    assert whole.returncode == 0 and len(told_by(whole)) == 1, whole.stdout + whole.stderr

    done = training.warm(1, broken, interrupting(50, evaluations=1), **changes)
    assert done.returncode == 75, done.stderr
    done = training.warm(1, broken, **changes)
    assert done.returncode == 0 and told_by(done) == told_by(whole), done.stderr
    assert timeless(broken) == timeless(straight)
    assert examined_at(broken, 60) == examined_at(straight, 60) == 50


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
