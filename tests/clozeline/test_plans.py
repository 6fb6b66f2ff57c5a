"""What `clozeline start` decides for any machine, text and time is what training takes."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest

from clozeline.start import decide as decide_module
from clozeline.start import steps
from clozeline.start.decide import (
    BYTES_OF_TOKEN,
    Sections,
    changes,
    decide,
    expected,
    too_few_gpus,
    warnings,
)
from clozeline.start.plan_file import Values, parse, steps_of
from pipeline.look import Look
from pipeline.look import look_at as look_at_folder
from schemas import host_limits
from schemas.errors import UsageError
from tests.pipeline.shard.test_detection import ARTICLE, UNKNOWN_LANGUAGES
from trainer.config.load import load_recipe

CHANGED = ("schedule.warmup_steps", "evaluation.every", "checkpoint.every")


def look_at(megabytes: float) -> Look:
    return Look(
        kinds=[],
        text_key="text",
        text_layout="blank_line",
        text_bytes=int(megabytes * 1e6),
        documents=1000,
        languages={"en": 1.0},
        encodings={},
    )


@pytest.mark.parametrize("gpus", [0, 1, 8])
@pytest.mark.parametrize("hours", [0.01, 0.17, 0.5, 1.0, 3.0, 8.0, 24.0, 100.0])
@pytest.mark.parametrize("megabytes", [0.1, 2, 50, 10_000])
def test_the_settings_of_training_make_a_recipe(gpus: int, hours: float, megabytes: float) -> None:
    train = decide("corpus", look_at(megabytes), gpus, hours, None)["train"]
    values = {key: setting.value for key, setting in train.items() if key not in ("config", "processes")}
    recipe = load_recipe(train["config"].value, [f"{key}={value}" for key, value in values.items()])
    assert recipe.run.max_hours == hours

    shipped = load_recipe(train["config"].value, [])
    is_short = hours < (shipped.run.max_hours or 0)
    assert is_short == any(key in values for key in CHANGED)
    assert train["processes"].value == (gpus if train["config"].value.startswith("gpu") else 1)


@pytest.mark.parametrize(
    ("megabytes", "hours", "recipe"), [(2, 24, "gpu_minutes"), (0.1, 24, "cpu_night"), (0.1, 0.2, "cpu_minutes")]
)
def test_a_gpu_takes_smaller_steps_for_text_that_would_fill_only_a_few(
    megabytes: float, hours: float, recipe: str
) -> None:
    config = decide("corpus", look_at(megabytes), 1, hours, None)["train"]["config"]
    assert config.value == recipe and "so little text" in config.why


@pytest.mark.parametrize("megabytes", [2, 250])
@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize(("before", "after"), [(0.17, 24.0), (24.0, 0.17), (2.0, 2.5)])
def test_other_hours_make_of_a_plan_what_they_would_have_made_at_once(
    megabytes: float, gpus: int, before: float, after: float
) -> None:
    look = look_at(megabytes)
    first, at_once = (decide("corpus", look, gpus, hours, None) for hours in (before, after))
    plan = {step: {key: setting.value for key, setting in settings.items()} for step, settings in first.items()}
    changed = changes(plan, after, None, lambda: look)
    for step in ("vocab", "train"):
        found = plan[step] | {key: setting.value for key, setting in changed.get(step, {}).items()}
        kept = {key: value for key, value in found.items() if value is not None}
        assert kept == {key: setting.value for key, setting in at_once[step].items()}


@pytest.mark.parametrize(("gigabytes", "hours", "is_told"), [(20, 0.2, True), (20, 8.0, False), (0.1, 0.05, False)])
def test_text_that_takes_longer_than_its_training_is_told(
    gigabytes: float, hours: float, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide_module, "usable_cores", lambda: 2)
    look = look_at(1000 * gigabytes)
    told = " ".join(warnings(look, decide("corpus", look, 0, hours, None)))
    assert ("take some 0.8 hours for 20.0 GB of text" in told) == is_told


def test_a_dataset_of_the_hub_is_named_on_cards() -> None:
    shard = decide("hf://datasets/me/texts@v1/data/*.parquet", look_at(10), 0, 1.0, None)["shard"]
    assert shard["corpus_name"].value == "me/texts"
    assert shard["corpus_url"].value == "https://huggingface.co/datasets/me/texts"


def test_a_vocabulary_of_ones_own_size_stays_when_hours_change() -> None:
    look = look_at(250)
    sections = decide("corpus", look, 0, 0.17, None)
    assert sections["vocab"]["size"].value == 8_000
    plan = {step: {key: setting.value for key, setting in settings.items()} for step, settings in sections.items()}
    assert changes(plan, 1.0, None, lambda: look)["vocab"]["size"].value == 16_000
    plan["vocab"]["size"] = 12_000
    assert "vocab" not in changes(plan, 1.0, None, lambda: look)


@pytest.mark.parametrize(
    ("megabytes", "size", "why"),
    [
        (1, 16_000, "little text fills fewer"),
        (60, 16_000, "for some"),
        (1000, 16_000, "more hours of this text take 30,522"),
    ],
)
def test_minutes_of_chinese_have_entries_for_its_characters(megabytes: float, size: int, why: str) -> None:
    chinese = replace(look_at(megabytes), scripts={"ideographs": 1.0})
    found = decide("corpus", chinese, 0, 0.17, None)["vocab"]["size"]
    assert found.value == size and why in found.why


@pytest.mark.parametrize(
    ("recipe", "planned", "found", "said"),
    [
        ("gpu_day", 8, 0, "is for 8 GPUs, and this machine has no GPU. In the same hours a CPU makes"),
        ("gpu_minutes", 1, 0, "is for 1 GPU, and this machine has no GPU. In the same hours a CPU makes"),
        ("gpu_day", 8, 2, "is for 8 GPUs, and this machine has 2 GPUs. Set processes = 2."),
        ("gpu_day", 8, 8, ""),
        ("cpu_hour", 2, 0, ""),
    ],
)
def test_a_plan_for_other_gpus_is_noticed(recipe: str, planned: int, found: int, said: str) -> None:
    warnings = list(too_few_gpus({"config": recipe, "processes": planned}, found))
    assert [said in line for line in warnings] == [True] * bool(said)


ON_TWO = '[train]\nconfig = "tiny"\nprocesses = 2'


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a container has them: devices, and no nvidia-smi."""
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(host_limits, "DEVICES", tmp_path)
    for name in [*map(str, range(8)), "ctl", "-uvm"]:
        (tmp_path / f"nvidia{name}").touch()


@pytest.mark.parametrize(
    ("visible", "gpus", "flags"),
    [
        ("2,3", 2, "--include localhost:2,3"),
        ("4,2,3", 3, "--include localhost:4,2"),
        ("2, 3", 2, "--include localhost:2,3"),
        ("0,-1,1", 1, "--num_gpus 2"),
        ("9", 0, "--num_gpus 2"),
        ("NoDevFiles", 0, "--num_gpus 2"),
        ("3,3", 0, "--num_gpus 2"),
        ("-1", 0, "--num_gpus 2"),
        ("", 0, "--num_gpus 2"),
    ],
)
def test_training_gets_the_gpus_that_are_visible(
    eight_gpus: None, monkeypatch: pytest.MonkeyPatch, visible: str, gpus: int, flags: str
) -> None:
    """DeepSpeed's launcher takes the first ones for --num_gpus, even if CUDA_VISIBLE_DEVICES names others."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert len(host_limits.usable_gpus()) == gpus
    assert f"deepspeed {flags} --module trainer" in commands_of(ON_TWO)["train"]


def test_gpus_are_counted_where_there_are_some(
    eight_gpus: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert len(host_limits.usable_gpus()) == 8
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937,GPU-11111111")
    with pytest.raises(UsageError, match="knows GPUs by their numbers alone"):
        commands_of(ON_TWO)

    monkeypatch.setattr(host_limits, "DEVICES", tmp_path / "none")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # of a profile for other machines
    assert len(host_limits.usable_gpus()) == 0


def test_how_many_processes_train_makes_no_other_run() -> None:
    one, two = (plan_of(f'[train]\nconfig = "tiny"\nprocesses = {number}') for number in (1, 2))
    assert steps.commands_of(one) == steps.commands_of(two)
    assert steps.commands_of(one) != steps.commands_of(plan_of('[train]\nconfig = "cpu_hour"'))


@pytest.mark.parametrize(
    ("line", "flag"),
    [("lowercase = true", " --lowercase"), ("lowercase = false", " --no_lowercase"), ("extend = false", "")],
)
def test_what_a_plan_turns_off_is_off(line: str, flag: str) -> None:
    words = commands_of(f'[vocab]\n{line}\n[train]\nconfig = "tiny"')["vocab"]
    assert words == f"clozeline vocab --text out/text --output out/vocab{flag}"


def plan_of(text: str) -> Values:
    """Return a plan with these sections."""
    missing = "".join(f"[{name}]\n" for name in ("shard", "vocab", "pairs") if f"[{name}]" not in text)
    return parse(missing + text, "plan.toml")


def commands_of(text: str) -> dict[str, str]:
    return {step.name: " ".join(step.words) for step in steps_of(plan_of(text), "out")}


@pytest.mark.parametrize(
    ("megabytes", "hours", "language", "is_told"),
    [
        (2, 0.17, "en", True),
        (50, 1.0, "en", True),
        (1, 0.17, "en", False),
        (50, 0.05, "en", False),
        (50, 0.17, "de", False),
        (50, 8.0, "en", False),
    ],
)
def test_what_to_expect_is_what_the_recipe_says(megabytes: float, hours: float, language: str, is_told: bool) -> None:
    look = look_at(megabytes)
    told = expected(look, decide("corpus", look, 0, hours, language))
    assert len(told) == is_told and all(" MB of English: " in line and line.endswith(".") for line in told)
    assert "24% of blanks filled in exactly" in "".join(told) or hours != 0.17 or not is_told


PAGE_OF_SIZES = (Path(__file__).parents[2] / "docs/sizes.md").read_text()


def page_rows(first_cell: str) -> list[list[str]]:
    """Return the rows of the table of docs/sizes.md whose header begins with this cell."""
    _, _, below = PAGE_OF_SIZES.partition(f"| {first_cell} |")
    lines = below.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def sections_of(megabytes: float, gpus: int, hours: float, **scripts: float) -> Sections:
    documents = int(megabytes * 1e6) // 3000
    look = replace(look_at(megabytes), documents=documents, scripts=scripts)
    return decide("corpus", look, gpus, hours, None)


@pytest.mark.parametrize("row", page_rows("text"), ids=lambda row: row[0])
def test_the_page_of_sizes_has_what_is_decided_for_an_amount_of_text(row: list[str]) -> None:
    number, unit = row[0].split()
    megabytes = int(number) * (1000 if unit == "GB" else 1)
    minutes, day = sections_of(megabytes, 0, 0.17), sections_of(megabytes, 1, 24.0)
    chinese = sections_of(megabytes, 1, 24.0, ideographs=1.0)
    tokens = megabytes * 1e6 / BYTES_OF_TOKEN
    assert row[1:] == [
        f"{day['vocab']['size'].value:,}",
        f"{chinese['vocab']['size'].value:,}",
        f"{minutes['shard']['holdout'].value:.1%}",
        f"{tokens / 1e6:.3g} million" if tokens < 1e8 else f"{tokens / 1e6:,.0f} million",
        *(f"{ceil(tokens / tokens_of_step(sections)):,}" for sections in (minutes, day)),
    ]


@pytest.mark.parametrize("row", page_rows("machine, hours"), ids=lambda row: row[0])
def test_the_page_of_sizes_has_what_is_decided_for_a_time(row: list[str]) -> None:
    machine, hours = row[0].split(", ")
    sections = sections_of(100, int(machine == "GPU"), float(hours))
    recipe = load_recipe(sections["train"]["config"].value, [])
    assert row[1:] == [
        f"`{sections['train']['config'].value}`",
        f"{recipe.model.num_hidden_layers} x {recipe.model.hidden_size}",
        f"{recipe.batch.global_batch:,}",
        f"{tokens_of_step(sections):,}",
        f"{recipe.optimizer.lr:g}",
        f"{recipe.schedule.warmup_steps:,}",
    ]


def tokens_of_step(sections: Sections) -> int:
    recipe = load_recipe(sections["train"]["config"].value, [])
    return recipe.batch.global_batch * sections["pairs"]["max_length"].value


@pytest.mark.parametrize(
    ("gpus", "hours", "recipe"),
    [(0, 0.17, "cpu_minutes"), (0, 1, "cpu_hour"), (0, 8, "cpu_night"), (1, 0.2, "gpu_minutes"), (8, 24, "gpu_day")],
)
def test_hours_decide_the_recipe(gpus: int, hours: float, recipe: str) -> None:
    assert decide("corpus", look_at(50), gpus, hours, None)["train"]["config"].value == recipe


@pytest.mark.parametrize("name", ["Cherokee", "zh"])
@pytest.mark.parametrize("given", [None, "und"])
def test_characters_decide_about_the_vocabulary_and_no_guess_does(name: str, given: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{(ARTICLE | UNKNOWN_LANGUAGES)[name]}\n" * 80)
    sections = decide(str(tmp_path), look_at_folder(str(tmp_path)), 0, 0.17, given)
    assert sections["shard"]["language"].value == (given or {"Cherokee": "und"}.get(name, name))
    assert (sections["vocab"]["size"].value == 16_000) == (name == "zh")
    assert given or name == "zh" or "name it" in sections["shard"]["language"].why
