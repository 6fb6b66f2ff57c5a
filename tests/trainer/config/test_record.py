"""What a resume says of a changed recipe, what it refuses, and what a model card shows."""

import json
import shutil
from pathlib import Path

import pytest

from trainer.config.load import load_recipe
from trainer.config.parse import section_in, takes_text
from trainer.config.record import PATH_KEYS, RecipeChange, public_changes, public_recipe
from trainer.config.schema import DeepSpeedSection, PhaseSection, Recipe
from trainer.config.sections import Section
from trainer.export import convert as export

SHORT = {"run__max_steps": 6, "checkpoint__every": 2, "checkpoint__keep": 9, "schedule__warmup_steps": 1}


@pytest.fixture(scope="module")
def half(training, tmp_path_factory) -> Path:
    """A run that stopped after step 2 of 6; tests that train it further copy it."""
    out = tmp_path_factory.mktemp("half") / "run"
    training.trained(1, out, run__stop_at=2, **SHORT)
    return out


def test_a_changed_recipe_is_recorded_everywhere(training, half: Path, tmp_path: Path) -> None:
    half = Path(shutil.copytree(half, tmp_path / "run"))
    done = training.trained(1, half, optimizer__lr=0.001, **SHORT)
    assert "The recipe changed: optimizer.lr was 0.003, is 0.001 from step 3 on." in done.stdout
    assert "run.stop_at" not in done.stdout and done.stdout.count("The recipe changed") == 1

    change = {"step": 2, "key": "optimizer.lr", "before": 0.003, "now": 0.001}
    history = (half / "recipe_history.jsonl").read_text()
    assert [json.loads(line) for line in history.splitlines()] == [change]

    page = (half / "report.html").read_text()
    assert "Recipe changes" in page
    assert "<td>3</td><td>optimizer.lr</td><td>0.003</td><td>0.001</td>" in page

    for step, recorded in ((6, True), (2, False)):
        export.export(str(half), str(tmp_path / f"hf{step}"), step)
        card = (tmp_path / f"hf{step}" / "README.md").read_text()
        assert ("| 3 | optimizer.lr | 0.003 | 0.001 |" in card) == recorded


def test_what_only_the_first_weights_depend_on_is_told_to_have_no_effect(training, half: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(half, tmp_path / "run"))
    done = training.trained(1, run, **SHORT, model__initial_attention="identity")
    [told] = [line for line in done.stdout.splitlines() if "The recipe changed" in line]
    assert "model.initial_attention was random, is identity. This has no effect on a run that has begun" in told


def test_other_data_is_refused_with_folders_and_fingerprints(training, half: Path, pairs: Path, held_out: Path) -> None:
    done = training.warm(1, half, data__pairs=held_out, **SHORT)
    before, now = (json.loads((folder / "manifest.json").read_text())["fingerprint"] for folder in (pairs, held_out))
    assert done.returncode == 4, done.stderr
    message = f"data.pairs was {pairs} (fingerprint {before}), is {held_out} (fingerprint {now}). Put the data back"
    assert message in done.stderr


def test_other_data_is_refused_for_a_finished_run_too(training, half: Path, held_out: Path) -> None:
    done = training.warm(1, half, data__pairs=held_out, run__stop_at=2, **SHORT)
    assert done.returncode == 4 and "was trained on other data" in done.stderr, done.stderr


def test_a_model_card_shows_no_places_and_no_accounts(tmp_path: Path) -> None:
    """In [[phases]] and run.local either. [deepspeed] is not shown, because nothing in it changes what is trained."""
    phase = '[[phases]]\nsteps = 4\ndata = { pairs = "/secret/a" }\nbatch = { global_batch = 32, micro_batch = 16 }\n'
    config = tmp_path / "recipe.toml"
    config.write_text(Path("tests/recipes/small_bert.toml").read_text() + phase)
    recipe = load_recipe(
        str(config),
        [
            "run.max_steps=4",
            "schedule.warmup_steps=1",
            "run.local=/secret/b",
            'deepspeed.wandb={enabled=true, team="secret"}',
            'data.pairs=["/secret/d", "s3://secret/e"]',
            "masking.replacement=100/0/0",
        ],
    )
    text = public_recipe(recipe)
    assert "secret" not in text and "~" not in text and "deepspeed" not in text
    assert "steps = 4" in text and "global_batch = 32" in text and 'replacement = "100/0/0"' in text


def texts_in(section: type[Section]) -> set[str]:
    """Return the names of the keys that take any text, in a section and the tables inside it."""
    found: set[str] = set()
    for name, field in section.model_fields.items():
        inner = section_in(field.annotation)
        if inner is not None:
            found |= texts_in(inner)
        elif takes_text([name], section):
            found.add(name)
    return found


def test_every_key_that_takes_a_path_is_known() -> None:
    """The tables of a phase hold keys of the recipe's own sections."""
    texts = texts_in(Recipe) - texts_in(DeepSpeedSection) - texts_in(PhaseSection)
    assert texts - {*PATH_KEYS} == {"replacement"}


def test_a_model_card_shows_no_changes_of_places_and_accounts() -> None:
    hidden = [
        RecipeChange(step=2, key="phases.1.data.pairs", before="a", now="b"),
        RecipeChange(step=5, key="run.output", before="/a", now="/b"),
        RecipeChange(step=2, key="deepspeed.wandb.team", before="a", now="b"),
    ]
    shown = [
        RecipeChange(step=2, key="optimizer.lr", before=1, now=2),
        RecipeChange(step=5, key="masking.replacement", before="80/10/10", now="100/0/0"),
    ]
    assert public_changes([*hidden, *shown]) == shown
