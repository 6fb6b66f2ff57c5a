"""Recipes by name or by file, changes by --set, and what is said of mistakes."""

import re
from pathlib import Path

import pytest

from schemas.errors import StorageError, UsageError
from trainer.config.document import ROBERTA_BASE, shipped_recipe
from trainer.config.load import load_recipe, read_recipe, recipe_description, recipe_names, recipe_text
from trainer.config.sections import MaskingSection

RECIPES = Path("trainer/recipes").absolute()
TINY = "tests/recipes/small_bert.toml"


def test_set_takes_toml_and_bare_words() -> None:
    changes = ["run.seed=7", "optimizer.lr=1e-4", "data.pairs=s3://bucket/pairs", "optimizer.betas=[0.8, 0.9]"]
    recipe = load_recipe(TINY, changes)
    assert (recipe.run.seed, recipe.optimizer.lr, recipe.data.pairs) == (7, 1e-4, "s3://bucket/pairs")
    assert recipe.optimizer.betas == (0.8, 0.9)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("run.max_step=5", r"^--set run\.max_step=5: unknown key run\.max_step\. Did you mean run\.max_steps\?$"),
        (
            "optimizer.learning_rate=1",
            r"unknown key optimizer\.learning_rate\. \[optimizer\] has kind, lr, betas, .*clip",
        ),
        ("lr=1e-3", r"^--set lr=1e-3: expected section\.key=value, .* Did you mean optimizer\.lr\?$"),
        ("optimiser.lr=1", r"unknown key optimiser\. Did you mean optimizer\?"),
        ("model=3", r"expected section\.key=value, as in run\.seed=7\.$"),
        ("data.pairs=[]", r"data\.pairs names no folder"),
        ("run.output=https://a.example/x", r"run\.output is https://a\.example/x, and such URLs are only read"),
        ("run.local=s3://bucket/x", r"run\.local is 's3://bucket/x'\. Give a folder on a disk"),
        ("data.cache=s3://bucket/x", r"data\.cache is 's3://bucket/x'"),
        ("run.seed", r"expected section\.key=value"),
        ("run.log_every.x=1", "log_every is a value, not a section"),
        ("optimizer.lr=-1", r"optimizer\.lr: .*greater than 0"),
        ("model.num_attention_heads=5", r"model\.num_attention_heads 5 does not divide model\.hidden_size 128"),
        ("batch.micro_batch=none", r"\[batch\] needs global_batch and micro_batch \(rows\), or global_tokens"),
        ("batch.global_tokens=4096", r"\[batch\] needs .*, not both"),
        ("data.weights=[1, 2]", r"data\.weights \[1\.0, 2\.0\] must be 1 numbers? above 0"),
        ("data.weights=7", r"data\.weights 7 must be from 0 \(equal shares\) to 1"),
        ("engine.compile=true", r"engine\.compile needs batches of one shape\. Set batch\.shape"),
        ("batch.micro_batch=5", r"micro_batch 5 does not divide batch\.global_batch 32"),
        ("schedule.warmup_steps=9999", r"warmup_steps 9999 is above run\.max_steps"),
        ("schedule.final_lr=1", r"final_lr 1\.0 is above optimizer\.lr 0\.004"),
        ("schedule.power=2", r"power belongs to kind polynomial, not linear"),
        ("schedule.decay_steps=5", r"decay_steps belongs to kind wsd"),
        ("schedule.kind=wsd", r"wsd needs it"),
        (
            "masking.replacement=80/10",
            r"^--set [^:]*: masking\.replacement: expected three whole percentages [^:]*\"80/10/10\", found '80/10'\. ",
        ),
        ("schedule.decay_from=end", r"schedule\.decay_from: .*found 'end'"),
        ("engine.offload=parameters", r"engine\.offload parameters is not for engine\.zero_stage 1"),
        ("deepspeed.optimizer=4", r"has .*zero_optimization.* Everything else in DeepSpeed's configuration comes from"),
    ],
)
def test_mistakes_are_named(change: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        load_recipe(TINY, [change])


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(read_recipe(TINY), encoding="utf-8-sig")
    assert load_recipe(str(tmp_path / "recipe.toml"), []) == load_recipe(TINY, [])


def test_all_phases_can_be_removed_and_single_ones_not_changed() -> None:
    alone = ["phases=none", "run.max_steps=20", "batch.ramp_steps=5"]
    assert load_recipe("modernbert_base", alone).phases == []
    for change in ("phases=[]", "phases.0.steps=5", "phases=3"):
        with pytest.raises(UsageError, match=r"single phases cannot be set.*phases=none"):
            load_recipe("modernbert_base", [change])


def test_a_section_is_emptied_before_its_keys_are_set() -> None:
    stored = ["masking.stored=true", "masking=none"]
    assert (
        load_recipe("tiny", stored).masking == load_recipe("tiny", stored[::-1]).masking == MaskingSection(stored=True)
    )
    with pytest.raises(UsageError, match=r"batch\.? is missing"):
        load_recipe("tiny", ["batch=none"])


def flags_in(told: str) -> list[list[str]]:
    """The keys and values of each command that a message shows."""
    return [command.split("--set ")[1:] for command in re.findall("`(.*?)`", told)]


@pytest.mark.parametrize(
    "changes",
    [
        ["masking.stored=true"],
        ["batch.global_tokens=4096"],
        ["batch.global_tokens=4096", "batch.micro_tokens=1024"],
        ["batch.micro_tokens=1024"],
        ["batch.global_batch=none", "batch.global_tokens=4096"],
    ],
)
def test_flags_that_a_message_shows_help(changes: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe("tiny", changes)
    ways_out = flags_in(str(caught.value))
    assert ways_out
    for way_out in ways_out:
        load_recipe("tiny", [*changes, *map(str.strip, way_out)])


def test_a_schedule_longer_than_the_run_is_refused() -> None:
    changes = ["schedule.kind=wsd", "schedule.warmup_steps=900", "schedule.decay_steps=900"]
    assert load_recipe(TINY, changes).schedule.decay_steps == 900
    with pytest.raises(UsageError, match=r"warmup_steps and decay_steps together are above run\.max_steps 1800"):
        load_recipe(TINY, [*changes, "schedule.decay_steps=901"])


def test_a_missing_section_and_a_missing_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[model]\nfamily = 'bert'\n")
    with pytest.raises(UsageError, match=r"model\.num_hidden_layers is missing.*data is missing.*run is missing"):
        load_recipe(str(tmp_path / "r.toml"), [])
    with pytest.raises(UsageError, match=r"none\.toml does not exist"):
        load_recipe(str(tmp_path / "none.toml"), [])
    (tmp_path / "r.toml").write_text("[model\n")
    with pytest.raises(UsageError, match="is not TOML"):
        load_recipe(str(tmp_path / "r.toml"), [])
    (tmp_path / "clozeline.toml").write_text("[start]\n[shard]\n[train]\nconfig = 'tiny'\n")
    with pytest.raises(UsageError, match="is the plan of `clozeline start`, not a recipe"):
        load_recipe(str(tmp_path / "clozeline.toml"), [])


def test_places_have_one_form_wherever_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    changes = ["run.output=~/run/", 'data.pairs=["file:///data/a", "~/b"]', "model.init_from=~/bert"]
    recipe = load_recipe(TINY, changes)
    assert (recipe.run.output, recipe.run.folder) == ("/home/ada/run", "/home/ada/run")
    assert recipe.data.folders == ["/data/a", "/home/ada/b"]
    assert recipe.model.init_from == "/home/ada/bert"


# Recipes that ship


def test_every_recipe_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert recipe_names() == sorted(path.stem for path in RECIPES.glob("*.toml"))
    for name in recipe_names():
        file = load_recipe(str(RECIPES / f"{name}.toml"), ROBERTA_BASE if name.startswith("adapt_") else [])
        assert shipped_recipe(name) == file


def test_every_recipe_begins_with_a_description_of_one_line() -> None:
    for name in recipe_names():
        description = recipe_description(name)
        assert description.endswith(".") and len(description) > 20, name


def test_every_recipe_takes_held_out_pairs_without_further_keys() -> None:
    for name in recipe_names():
        recipe = shipped_recipe(name, ["evaluation.pairs=out/held_out"])
        assert recipe.evaluation.pairs == "out/held_out", name


def test_every_recipe_with_fixed_shapes_compiles() -> None:
    """Fixed shapes pad by a few percent, which only pays if the model is compiled."""
    for name in recipe_names():
        recipe = shipped_recipe(name)
        assert recipe.batch.shape != "fixed" or recipe.engine.compile == "auto", name


def test_a_file_comes_before_a_shipped_recipe_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").write_text(recipe_text("bert_base"))
    assert load_recipe("tiny", []).model.hidden_size == 768
    (tmp_path / "tiny").unlink()
    (tmp_path / "tiny").mkdir()
    assert load_recipe("tiny", []).model.hidden_size == 128, "a folder is no recipe"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert-base", r"--config bert-base does not exist\. Did you mean bert_base\? .*`clozeline recipes`"),
        ("trainer/recipe/tiny.toml", r"does not exist\. Did you mean tiny\?"),
        ("nothing/like/it.toml", r"does not exist\. Give a file, or the name of a recipe"),
        (".", r"--config \. is a folder"),
    ],
)
def test_a_name_that_is_neither_is_explained(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe(name, [])


def test_a_recipe_that_cannot_be_read_is_a_storage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(StorageError, match=r"r\.toml cannot be read: Permission denied"):
        load_recipe("r.toml", [])


def test_an_unknown_name_has_no_text() -> None:
    with pytest.raises(UsageError, match=r"no recipe bert_bse\. Did you mean bert_base\?"):
        recipe_text("bert_bse")
