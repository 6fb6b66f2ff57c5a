"""Recipes by name, from any directory."""

from pathlib import Path

import pytest

from schemas.errors import StorageError, UsageError
from trainer.config.load import load_recipe
from trainer.config.shipped import recipe_comment, recipe_description, recipe_names, recipe_text

RECIPES = Path("trainer/recipes").absolute()


def test_every_recipe_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert recipe_names() == sorted(path.stem for path in RECIPES.glob("*.toml"))
    for name in recipe_names():
        assert load_recipe(name, []) == load_recipe(str(RECIPES / f"{name}.toml"), [])


def test_every_recipe_begins_with_a_description_of_one_line() -> None:
    for name in recipe_names():
        description = recipe_description(name)
        assert description.endswith(".") and len(description) > 20, name


def test_every_recipe_takes_held_out_pairs_without_further_keys() -> None:
    for name in recipe_names():
        recipe = load_recipe(name, ["evaluation.pairs=out/held_out"])
        assert recipe.evaluation.pairs == "out/held_out", name


def test_every_recipe_with_fixed_shapes_compiles() -> None:
    """Fixed shapes pad by a few percent, which only pays if the model is compiled."""
    for name in recipe_names():
        recipe = load_recipe(name, [])
        assert recipe.batch.shape != "fixed" or recipe.engine.compile == "auto", name


def test_comments_are_found_by_their_label() -> None:
    assert recipe_comment("bert_base", "Pairs") == "--objective nsp --max_length 128."
    assert recipe_comment("bert_base", "Pair") == ""


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
