"""Two phases in one recipe, resumed as one run."""

import json
from pathlib import Path

import pytest

from schemas.errors import UsageError
from trainer.config.load import load_recipe
from trainer.config.phases import phase_after, phases_of
from trainer.config.schema import Recipe
from trainer.config.text import dump_recipe
from trainer.optim.lr_schedule import learning_rate

TINY = Path("trainer/recipes/tiny.toml").read_text()
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


def test_phases_are_written_and_read_again(tmp_path: Path) -> None:
    recipe = loaded(tmp_path)
    (tmp_path / "recipe.toml").write_text(dump_recipe(recipe))
    assert load_recipe(str(tmp_path / "recipe.toml"), []) == recipe


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ("\nsteps = 4\n", r"the phases have 11 steps together, but run\.max_steps is 12\. Make them equal"),
        (
            "\nsteps = 5\noptimizer = { lrr = 1 }\n",
            r"phase 2: unknown key optimizer\.lrr\. Did you mean .*\.lr\?",
        ),
        ("\nsteps = 5\nmodel = { layers = 1 }\n", r"phase 2: unknown key model\."),
        ("\nsteps = 5\nschedule = { warmup_steps = 6 }\n", r"phase 2: schedule\.warmup_steps is above .* 5"),
        (
            "\nsteps = 5\nbatch = { global_batch = 9, micro_batch = 2 }\n",
            r"phase 2: batch\.micro_batch 2 does not",
        ),
    ],
    ids=["sum", "key", "model", "warmup", "batch"],
)
def test_mistakes_name_the_phase(tmp_path: Path, second: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        loaded(tmp_path, second)


def test_two_phases_resumed_in_each_equal_an_unbroken_run(training, tmp_path: Path) -> None:
    """Stopped in the first, at its end and in the second; at last other masks in the second are refused."""
    config = two_phases(tmp_path)
    assert training.warm(2, tmp_path / "straight", config=config).returncode == 0
    told = ""
    for stop in (5, 7, 9, 12):
        done = training.warm(2, tmp_path / "run", config=config, run__stop_at=stop)
        assert done.returncode == 0, done.stderr
        told += done.stdout
    assert "step 7, token 0" in told and "step 9, token 1,200" in told
    assert training.losses(tmp_path / "run") == training.losses(tmp_path / "straight")
    assert training.tensors(tmp_path / "run", 12) == training.tensors(tmp_path / "straight", 12)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["lr"] for line in lines[7:9]] == pytest.approx([0.0005, 0.001])

    config.write_text(config.read_text().replace('"span"', '"token"'))
    done = training.warm(1, tmp_path / "run", config=config)
    assert done.returncode == 4 and "masking.kind was span, is token" in done.stderr
