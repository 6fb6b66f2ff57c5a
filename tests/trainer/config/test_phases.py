"""Two phases in one recipe, resumed as one run."""

import json
import shutil
from pathlib import Path

import pytest

from schemas.errors import UsageError
from tests.trainer.conftest import logged
from trainer.cli import main
from trainer.config.load import load_recipe
from trainer.config.phases import phase_after, phases_of
from trainer.config.schema import Recipe
from trainer.export.convert import export
from trainer.optim.lr_schedule import learning_rate

TINY = Path("tests/recipes/small_bert.toml").read_text()
SECOND = """
steps = 5
batch = { global_tokens = 600, micro_tokens = 160 }
masking = { kind = "span" }
optimizer = { lr = 1e-3 }
schedule = { warmup_steps = 2 }
"""


def two_phases(folder: Path, second: str = SECOND) -> Path:
    path = folder / "two.toml"
    path.write_text(TINY + "\n[[phases]]\nsteps = 7\n\n[[phases]]" + second)
    return path


def loaded(folder: Path, second: str = SECOND) -> Recipe:
    return load_recipe(str(two_phases(folder, second)), ["run.max_steps=12", "schedule.warmup_steps=3"])


def test_a_phase_has_its_own_keys_and_the_runs_others(tmp_path: Path) -> None:
    recipe = loaded(tmp_path)
    first, second = phases_of(recipe)
    assert (first.steps_before, first.last_step, second.steps_before, second.last_step) == (0, 7, 7, 12)
    assert first.recipe.batch == recipe.batch and second.recipe.batch.size == 600
    assert second.recipe.batch.global_batch is None, "a phase's batch is a whole one"
    assert second.recipe.masking.kind == "span" and second.recipe.masking.prob == recipe.masking.prob
    assert second.recipe.optimizer.lr == 1e-3 and second.recipe.optimizer.betas == recipe.optimizer.betas
    assert first.recipe.run.seed == recipe.run.seed != second.recipe.run.seed
    assert [phase_after([first, second], step) for step in (0, 6, 7, 11, 12)] == [first, first, second, second, second]


def test_a_schedule_of_its_own_counts_from_the_phase_and_the_runs_goes_on_without(tmp_path: Path) -> None:
    def rates(recipe: Recipe) -> list[float]:
        found = []
        for step in range(1, 13):
            phase = phase_after(phases_of(recipe), step - 1)
            own, place = phase.recipe, step - phase.schedule_before
            found.append(learning_rate(place, own.optimizer, own.schedule, phase.schedule_steps))
        return found

    assert rates(loaded(tmp_path))[7:] == pytest.approx([0.0005, 0.001, 0.001, 0.001 * 2 / 3, 0.001 / 3])
    recipe = loaded(tmp_path, "\nsteps = 5\n")
    whole = [learning_rate(step, recipe.optimizer, recipe.schedule, 12) for step in range(1, 13)]
    assert rates(recipe) == whole


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (
            "\nsteps = 4\n",
            r"the phases have 11 steps together, but run\.max_steps is 12\. Make them equal, .* `--set phases=none`",
        ),
        (
            "\nsteps = 5\noptimizer = { lrr = 1 }\n",
            r"phase 2: unknown key optimizer\.lrr\. Did you mean .*\.lr\?",
        ),
        ("\nsteps = 5\noptimizer = { kind = 'lamb' }\n", r"phase 2: optimizer\.kind cannot change between phases"),
        ("\nsteps = 5\nmodel = { layers = 1 }\n", r"phase 2: model\.layers cannot change"),
        ("\nsteps = 5\nmodel = { hidden_size = 64 }\n", r"phase 2: model\.hidden_size cannot change between phases"),
        ("\nsteps = 5\nmodel = { rope_base = 1e5 }\n", r"phase 2: model\.rope_base belongs to .*family is \"bert\""),
        (
            "\nsteps = 5\nschedule = { warmup_steps = 6 }\n",
            r"phase 2: schedule\.warmup_steps 6 is above run\.max_steps 5",
        ),
        (
            "\nsteps = 5\nbatch = { global_batch = 9, micro_batch = 2 }\n",
            r"phase 2: batch\.micro_batch 2 does not",
        ),
    ],
    ids=["sum", "key", "optimizer", "model", "weights", "family", "warmup", "batch"],
)
def test_mistakes_name_the_phase(tmp_path: Path, second: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        loaded(tmp_path, second)


def test_two_phases_resumed_in_each_equal_an_unbroken_run(training, tmp_path: Path) -> None:
    """Stopped in the first, at its end and in the second; at last other masks in the second are refused."""
    config = two_phases(tmp_path)
    straight = training.trained(2, tmp_path / "straight", config=config)
    assert "Phase 2 of 2 begins after step 7.\n" in straight.stdout and "Resuming from" not in straight.stdout
    told = ""
    for stop in (5, 7, 9, 12):
        done = training.trained(2, tmp_path / "run", config=config, run__stop_at=stop)
        told += done.stdout
    assert "step 7, token 0" in told and "step 9, token 1,200" in told
    assert training.losses(tmp_path / "run") == training.losses(tmp_path / "straight")
    assert training.tensors(tmp_path / "run", 12) == training.tensors(tmp_path / "straight", 12)
    lines = logged(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["lr"] for line in lines[7:9]] == pytest.approx([0.0005, 0.001])

    config.write_text(config.read_text().replace('"span"', '"token"'))
    done = training.warm(1, tmp_path / "run", config=config)
    assert done.returncode == 4 and "masking.kind was span, is token" in done.stderr


def test_pairs_of_a_later_phase_may_be_made_while_the_first_trains(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.train.pretrain", lambda *_: None)
    config = two_phases(tmp_path, '\nsteps = 5\ndata = { pairs = "/none" }\n')
    values = [f"data.pairs={pairs}", f"run.output={tmp_path / 'run'}", "run.max_steps=12", "schedule.warmup_steps=3"]
    words = [word for value in values for word in ("--set", value)]
    assert main(["--config", str(config), *words]) == 0


def test_pairs_of_a_later_phase_that_are_there_are_checked_before_the_first(
    pairs: Path, byte_rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = two_phases(tmp_path, f'\nsteps = 5\ndata = {{ pairs = "{byte_rows}" }}\n')
    values = [f"data.pairs={pairs}", f"run.output={tmp_path / 'run'}", "run.max_steps=12", "schedule.warmup_steps=3"]
    words = [word for value in values for word in ("--set", value)]
    assert main(["--config", str(config), *words]) == 3
    assert f"{byte_rows} has another vocabulary than {pairs}" in capsys.readouterr().err


MODERN = """
steps = 6
model = { rope_base = 20000.0 }
masking = { replacement = "100/0/0", prob = 0.2, final_prob = 0.1 }
"""


EXACT = {
    "model__hidden_dropout_prob": 0.0,
    "model__attention_probs_dropout_prob": 0.0,
    "engine__precision": "fp32",
    "checkpoint__keep": 9,
}
"""Ranks draw dropout of their own."""


def modern(folder: Path) -> Path:
    """Causal LM, then masked LM with other rotations: a ModernBERT whose rows are longer than its window."""
    config = folder / "modern.toml"
    first = '\n[[phases]]\nsteps = 6\nobjective = { kind = "clm" }\n\n[[phases]]'
    text = TINY.replace('family = "bert"', 'family = "modernbert"\nwindow = 8')
    config.write_text(text + first + MODERN)
    return config


def test_causal_then_masked_lm_resumed_on_other_ranks_equals_an_unbroken_run(training, tmp_path: Path) -> None:
    """With another base of rotations in the second phase, and a kill in each."""
    config = modern(tmp_path)

    def warm(ranks: int, out: str, path: Path = config, **changes: object):
        return training.warm(ranks, tmp_path / out, config=path, **EXACT, **changes)

    straight = warm(2, "straight")
    assert straight.returncode == 0
    shown = [told for told in straight.stdout.splitlines() if told.startswith("step ") and "loss" in told]
    assert "  clm " in shown[0] and "  mlm " in shown[-1]
    for stop, ranks in ((3, 1), (6, 2), (8, 1), (12, 2)):
        done = warm(ranks, "run", run__stop_at=stop)
        assert done.returncode == 0, done.stderr
    found, expected = (training.losses(tmp_path / name) for name in ("run", "straight"))
    for step in range(1, 13):
        # The loss, also the masked LM's; the gradient's norm differs more between one rank and two.
        assert found[step][1:3] == pytest.approx(expected[step][1:3], rel=1e-5), step

    lines = logged(tmp_path / "run")
    assert {line["pair_loss"] for line in lines} == {None}
    assert export(str(tmp_path / "run"), str(tmp_path / "early"), step=6).startswith(str(tmp_path))
    assert export(str(tmp_path / "run"), str(tmp_path / "late"), step=12).startswith(str(tmp_path))
    bases = []
    for folder in ("early", "late"):
        content = json.loads((tmp_path / folder / "config.json").read_text())
        bases.append(content["rope_parameters"]["full_attention"]["rope_theta"])
    assert bases == [160_000.0, 20_000.0]

    for wrong, told in (("20000.0", "phase_model"), ('"100/0/0"', "masking.replacement"), ('"clm"', "objective")):
        other = {"20000.0": "30000.0", '"100/0/0"': '"80/10/10"', '"clm"': '"mlm"'}[wrong]
        changed = tmp_path / f"{told}.toml"
        changed.write_text(config.read_text().replace(wrong, other))
        phase_ends = 6 if told == "objective" else 12
        saved = (tmp_path / "run/checkpoints").iterdir()
        later = [path.name for path in saved if int(path.name.removeprefix("step-")) >= phase_ends]
        shutil.copytree(tmp_path / "run", tmp_path / told, ignore=shutil.ignore_patterns(*later))
        done = warm(1, told, changed)
        assert done.returncode == 4 and told in done.stderr, done.stderr
