"""A run that cannot learn is told why, one that can is not, and a resume is told the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.conftest import made, rows
from tests.trainer.conftest import TIMED, logged
from tests.trainer.one_rank import group_of_one, small_batch, small_engine, small_recipe
from trainer.config.phases import Phase, phases_of
from trainer.config.schema import PhaseSection, Recipe
from trainer.metrics.log import ADVICE, is_evaluation
from trainer.metrics.plateau import (
    Measured,
    Plateau,
    effective_rank,
    first_comparison,
    logged_cause,
    rank_at_masked_places,
)

STUCK = {
    "optimizer__lr": 1e-9,
    "run__max_steps": 60,
    "run__log_every": 10,
    "checkpoint__every": 1000,
    "batch__global_batch": 8,
    "batch__micro_batch": 8,
}


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

    text = made(command, folder / "text", "shard", "--input", folder / "corpus.jsonl", "--num_shards", 2)
    vocab = made(command, folder / "vocab", "vocab", "--text", text, "--model", "wordpiece", "--size", 150)
    return rows(command, "pairs", text, vocab, "nsp")


def test_a_run_that_cannot_learn_is_told_why(training, held_out, tmp_path: Path) -> None:
    """On two ranks that share the weights, which both must compute the last layer together."""
    whole = tmp_path / "whole"
    changes = STUCK | {"engine__zero_stage": 3, "evaluation__pairs": held_out, "evaluation__every": 50}
    changes |= {"evaluation__all_kinds": "true", "evaluation__batches": 1, "batch__micro_batch": 4}
    done = training.trained(2, whole, **changes)
    told = [line for line in (done.stdout + done.stderr).splitlines() if "no better than" in line]
    assert len(told) == 2 and "step 50" in told[0] and "learning rate low" in told[0] and "step 60" in told[1]

    lines = logged(whole)
    assert {line["step"]: line["loss_doctor"] for line in lines if "loss_doctor" in line} == {
        50: "learning_rate_low",
        60: "learning_rate_low",
    }
    trained = [line for line in lines if not is_evaluation(line)]
    assert len({line["unigram_loss"] for line in trained}) == 1
    assert all(line["mlm_loss_masked"] > line["unigram_loss"] for line in trained)

    evaluated = next(line for line in lines if line["step"] == 50 and is_evaluation(line))
    assert evaluated["eval_mlm_loss_masked"] > evaluated["eval_unigram_loss"] > 0
    assert evaluated["eval_span_mlm_loss_masked"] > 0

    page = (whole / "report.html").read_text()
    assert "Likely cause: learning rate low" in page and "word frequencies alone" in page


def interrupting(step: int) -> str:
    """A signal in the middle of the first evaluation, which is after `step`, on one rank."""
    # A step has one micro-batch. So has each of the four batches of an evaluation.
    forward = step + 2
    return f"ask:0:{forward}:{forward}"


def timeless(out: Path) -> list[list[tuple[str, Any]]]:
    """What a run logged, in order, but for times."""
    return [[(name, value) for name, value in line.items() if name not in TIMED] for line in logged(out)]


def told_by(done: Any) -> list[str]:
    return [line[line.index("step ") :] for line in done.stdout.splitlines() if "no better than" in line]


def test_a_run_is_told_the_same_if_a_signal_interrupted_the_evaluation_that_tells_it(
    training, held_out, tmp_path: Path
) -> None:
    """Its evaluation is rerun on resume, and its figures are examined then."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    changes = STUCK | {"evaluation__pairs": held_out, "evaluation__every": 50, "checkpoint__every": 50}
    whole = training.warm(1, straight, **changes)
    assert whole.returncode == 0 and len(told_by(whole)) == 2, whole.stdout + whole.stderr

    done = training.warm(1, broken, interrupting(50), **changes)
    assert done.returncode == 75 and not told_by(done), done.stderr
    assert not [line for line in logged(broken) if "loss_doctor" in line]

    # Interrupted once more, which changes nothing.
    done = training.warm(1, broken, interrupting(0), **changes)
    assert done.returncode == 75 and not told_by(done), done.stderr

    # As if step 50 were the last one.
    done = training.warm(1, broken, **changes, run__stop_at=50)
    assert done.returncode == 0 and told_by(done) == told_by(whole)[:1], done.stderr
    assert timeless(broken) == timeless(straight)[: len(logged(broken))] and logged(broken)[-1]["step"] == 50

    done = training.warm(1, broken, **changes)
    assert done.returncode == 0 and told_by(done) == told_by(whole)[1:], done.stderr
    assert timeless(broken) == timeless(straight)


@pytest.mark.thorough
def test_an_evaluation_between_phases_is_rerun_and_examined_in_the_phase_that_ended(
    training, held_out, tmp_path: Path
) -> None:
    """Its kind of masks and its words are not those of the next phase."""
    recipe = tmp_path / "phases.toml"
    phases = '[[phases]]\nsteps = 50\n\n[[phases]]\nsteps = 10\nmasking = { kind = "span", prob = 0.4 }\n'
    recipe.write_text(Path("tests/recipes/small_bert.toml").read_text() + "\n" + phases)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    changes = STUCK | {"config": recipe, "evaluation__pairs": held_out, "evaluation__every": 50}
    whole = training.warm(1, straight, **changes)
    assert whole.returncode == 0 and len(told_by(whole)) == 1, whole.stdout + whole.stderr

    done = training.warm(1, broken, interrupting(50), **changes)
    assert done.returncode == 75, done.stderr
    done = training.warm(1, broken, **changes)
    assert done.returncode == 0 and told_by(done) == told_by(whole), done.stderr
    assert timeless(broken) == timeless(straight)


def test_a_run_that_learns_is_told_nothing(training, easy_pairs: Path, tmp_path: Path) -> None:
    changes = STUCK | {"optimizer__lr": 5e-3, "run__max_steps": 200, "data__pairs": easy_pairs}
    done = training.trained(1, tmp_path / "run", **changes, model__hidden_dropout_prob=0)
    last = logged(tmp_path / "run")[-1]
    assert last["mlm_loss_masked"] < last["unigram_loss"] - 0.1
    assert "word frequencies alone" not in done.stdout + done.stderr


def test_without_held_out_pairs_the_training_loss_decides(training, tmp_path: Path) -> None:
    """100/0/0: no place is kept and none is random, and the mean over all places is that at [MASK]."""
    out = tmp_path / "run"
    training.trained(1, out, **STUCK, masking__replacement="100/0/0")
    lines = logged(out)
    assert [line["step"] for line in lines if "loss_doctor" in line] == [50, 60]
    assert all(line["mlm_loss_kept"] is None and line["mlm_loss_random"] is None for line in lines)
    assert all(line["mlm_loss_masked"] == pytest.approx(line["mlm_loss"]) for line in lines)


def test_no_place_of_causal_language_modeling_has_a_kind(training, tmp_path: Path) -> None:
    out = tmp_path / "run"
    training.trained(1, out, objective__kind="clm", run__max_steps=4)
    assert all("mlm_loss_masked" not in line and line["unigram_loss"] > 0 for line in logged(out))


@pytest.mark.thorough
def test_causal_language_modeling_is_examined_by_its_own_loss(training, held_out, tmp_path: Path) -> None:
    """Evaluations predict masked tokens, which a causal phase does not learn, so their loss says nothing about it."""
    out = tmp_path / "run"
    changes = STUCK | {"objective__kind": "clm", "evaluation__pairs": held_out, "evaluation__every": 50}
    learning = changes | {"optimizer__lr": 5e-3, "run__max_steps": 200}
    done = training.trained(1, out, **learning, model__hidden_dropout_prob=0)
    last, evaluated = logged(out)[-2:]
    assert last["mlm_loss"] < last["unigram_loss"] - 0.1
    assert evaluated["eval_mlm_loss_masked"] > evaluated["eval_unigram_loss"]
    assert not [line for line in logged(out) if "loss_doctor" in line], done.stderr

    stuck = training.warm(1, tmp_path / "stuck", **changes)
    assert "learning rate low" in stuck.stdout + stuck.stderr


AT_BASELINE = Measured(
    step=500, baseline=6.9, loss=6.88, kept_loss=6.8, movement=20.0, skipped=0, tokens_per_step=1_000
)


@pytest.mark.parametrize(
    ("cause", "changes"),
    [
        ("learning_rate_low", {"movement": 0.1, "loss": 9.0}),
        ("learning_rate_high", {"loss": 9.0}),
        ("learning_rate_high", {"skipped": 100}),
        ("copying", {"kept_loss": 0.7}),
        ("few_steps", {"tokens_per_step": 1e6}),
        ("few_steps", {"step": 60}),
    ],
)
def test_the_likely_cause_follows_from_logged_numbers(cause: str, changes: dict[str, Any]) -> None:
    found = logged_cause(AT_BASELINE._replace(**changes))
    assert found is not None and found[0] == cause in ADVICE and found[1].endswith(".")
    assert logged_cause(AT_BASELINE) is None and logged_cause(AT_BASELINE._replace(kept_loss=None)) is None


def plateau_of(recipe: Recipe, phase: Phase, evaluation: Any = None) -> Plateau:
    """What compares the losses of a phase, without an engine."""
    said = SimpleNamespace(at=lambda place: None)
    context: Any = SimpleNamespace(run_recipe=recipe, watchdog=said)
    guard: Any = SimpleNamespace(history=SimpleNamespace(skipped=0))
    engine: Any = None
    return Plateau(context, phase, engine, guard, evaluation, baseline=7.0)


def only_phase(*changes: str) -> Phase:
    return phases_of(small_recipe(*changes))[0]


def test_a_run_is_compared_past_its_warm_up_and_then_ever_more_seldom_and_at_its_end() -> None:
    assert first_comparison(only_phase("run.max_steps=1000", "schedule.warmup_steps=100")) == 200
    assert first_comparison(only_phase("run.max_steps=10000", "schedule.warmup_steps=900")) == 900
    ratio = ("schedule.warmup_steps=0", "schedule.warmup_ratio=0.07")
    assert first_comparison(only_phase("run.max_steps=10000", *ratio)) == 700
    assert first_comparison(only_phase("run.max_steps=12", "schedule.warmup_steps=1")) == 50

    recipe = small_recipe("run.max_steps=10000", "schedule.warmup_steps=100", "run.log_every=30")
    plateau = plateau_of(recipe, phases_of(recipe)[0])
    assert [step for step in range(1, 10_001) if plateau.is_due(step)] == [510, 1020, 2010, 4020, 8010, 10_000]


def test_a_later_phase_is_compared_past_its_own_first_steps() -> None:
    own_schedule = {"kind": "linear", "warmup_steps": 900}
    phases = [PhaseSection(steps=6000), PhaseSection(steps=3000, schedule=own_schedule), PhaseSection(steps=1000)]
    recipe = small_recipe("run.max_steps=10000", "schedule.warmup_steps=100")
    first, second, third = phases_of(recipe.model_copy(update={"phases": phases}))
    assert [first_comparison(phase) for phase in (first, second, third)] == [500, 6900, 9200]


def test_the_weights_moved_in_earlier_phases_too() -> None:
    """Ten steps at a low rate after a thousand at a high one do not mean that the rate was too low."""
    low = PhaseSection(steps=1000, optimizer={"lr": 1e-6}, schedule={"kind": "linear"})
    recipe = small_recipe("run.max_steps=2000", "schedule.warmup_steps=0", "optimizer.lr=1e-3")
    recipe = recipe.model_copy(update={"phases": [PhaseSection(steps=1000), low]})
    measured = plateau_of(recipe, phases_of(recipe)[1])._measured(1010, 1010, {"mlm_loss": 7.0, "unigram_loss": 7.0})
    assert measured is not None and measured.movement > 10


@pytest.mark.parametrize(("replacement", "kept"), [("80/10/10", 1.0), ("100/0/0", None), ("90/0/10", None)])
def test_copying_is_suspected_only_if_training_leaves_tokens(replacement: str, kept: float | None) -> None:
    """Evaluations always leave some, so there is a loss at them in any case."""
    recipe = small_recipe(f"masking.replacement={replacement}")
    figures = {"eval_mlm_loss": 5.0, "eval_mlm_loss_masked": 6.9, "eval_mlm_loss_kept": 1.0, "eval_unigram_loss": 6.92}
    measured = plateau_of(recipe, phases_of(recipe)[0], evaluation=object())._measured(60, 60, figures)
    assert measured is not None and measured.kept_loss == kept and measured.loss == 6.9


def test_all_predicted_places_decide_where_none_shows_the_mask() -> None:
    plateau = plateau_of(small_recipe(), only_phase())
    measured = plateau._measured(60, 60, {"mlm_loss": 6.9, "mlm_loss_masked": None, "unigram_loss": 6.9})
    assert measured is not None and measured.loss == 6.9
    assert plateau.examine(60, 60, {"mlm_loss": 5.0}, []) == {}
    assert plateau.examine(60, 60, {"mlm_loss": None, "unigram_loss": 5.0}, []) == {}
    assert plateau.examine(60, 60, {"mlm_loss": 6.84, "unigram_loss": 6.9}, []) == {}


def rank_of(vectors_ND: Tensor) -> float:
    x_ND = vectors_ND.double()
    return effective_rank(x_ND.T @ x_ND)


def test_the_rank_of_zeros_and_of_numbers_that_are_not_finite_is_0() -> None:
    assert rank_of(torch.zeros(4, 4)) == rank_of(torch.full((4, 4), float("nan"))) == 0


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_the_rank_is_that_of_the_singular_values(vectors: int, width: int, seed: int) -> None:
    x_ND = torch.randn(vectors, width, generator=torch.Generator().manual_seed(seed)).double()
    eigenvalues = torch.linalg.svdvals(x_ND).square()
    assert rank_of(x_ND) == pytest.approx(float(eigenvalues.sum().square() / eigenvalues.square().sum()))


def test_the_rank_at_masked_places_is_that_of_all_micro_batches_together() -> None:
    micro_batches = [small_batch(number) for number in range(3)]
    vectors: list[Tensor] = []
    with group_of_one():
        engine = small_engine(small_recipe())
        model: Any = engine.module
        hook = model.mlm_head.register_forward_pre_hook(lambda _, inputs: vectors.append(inputs[0].detach()))
        found = rank_at_masked_places(engine, micro_batches)
        hook.remove()

        assert found == rank_at_masked_places(engine, micro_batches), "added up in the same order each time"
        assert found != pytest.approx(rank_at_masked_places(engine, micro_batches[:1]))
        assert model.training
        engine.destroy()
    assert len(vectors) == 3 and found == pytest.approx(rank_of(torch.cat(vectors)))
