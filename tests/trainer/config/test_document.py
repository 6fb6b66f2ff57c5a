"""docs/recipes.md is what the schema says."""

from pathlib import Path

import pytest

from trainer.config.document import recipe_page
from trainer.config.schema import PhaseSection, Recipe
from trainer.config.section import Section
from trainer.config.shipped import recipe_names

SECTIONS = [
    Recipe,
    PhaseSection,
    *[field.annotation for field in Recipe.model_fields.values() if isinstance(field.annotation, type)],
]


def test_the_page_on_disk_is_up_to_date() -> None:
    on_disk = Path("docs/recipes.md").read_text(encoding="utf-8")
    assert on_disk == recipe_page(), "Run `make docs`."


@pytest.mark.parametrize("section", [s for s in SECTIONS if issubclass(s, Section)], ids=lambda s: s.__name__)
def test_every_key_has_a_description_and_is_on_the_page(section: type[Section]) -> None:
    assert section.__doc__
    page = recipe_page()
    for name, field in section.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), f"{name}: a description is a sentence"
        assert section is Recipe or f"| `{name}` |" in page


def test_bounds_defaults_and_recipes_are_on_the_page() -> None:
    page = recipe_page()
    assert "| `cache_gigabytes` | number | `50.0` | > 0, <= 1e+09 |" in page
    assert "| `betas` | list of 2 numbers | `[0.9, 0.999]` | >= 0, < 1 |" in page
    assert "| `pairs` | string or list of strings | required |" in page
    for name in recipe_names():
        assert f"| `{name}` |" in page


def test_the_introduction_says_how_phases_are_removed() -> None:
    introduction = recipe_page().partition("## ")[0]
    assert "`--set phases=none`" in introduction
