"""docs/recipes.md is what the schema says, and the list of shipped recipes is what their own keys say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainer.config.document import objective_text, recipe_list, recipe_page, rounded, summary
from trainer.config.load import load_recipe, recipe_comment, recipe_names, recipe_text
from trainer.config.parse import section_in
from trainer.config.phases import phases_of
from trainer.config.schema import Recipe
from trainer.config.sections import Section
from trainer.models.families import encoder_shape
from trainer.models.flops import flops_per_token

PUBLISHED = [name for name in recipe_names() if "H100" in recipe_comment(name, "Hardware")]
PEAK_SHARE = 0.4 * 989e12
HOURS = {"hour": 1, "hours": 1, "days": 24}


def tables_in(section: type[Section]) -> list[type[Section]]:
    inner = [section_in(field.annotation) for field in section.model_fields.values()]
    return [section, *[each for table in inner if table is not None for each in tables_in(table)]]


def test_the_page_on_disk_is_up_to_date() -> None:
    on_disk = Path("docs/recipes.md").read_text(encoding="utf-8")
    assert on_disk == recipe_page(), "Run `make docs`."


@pytest.mark.parametrize("section", dict.fromkeys(tables_in(Recipe)), ids=lambda section: section.__name__)
def test_every_key_has_a_description_and_is_on_the_page(section: type[Section]) -> None:
    assert section.__doc__
    page = recipe_page()
    for name, field in section.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), f"{name}: a description is a sentence"
        assert section is Recipe or f"| `{name}` |" in page


# The list of shipped recipes


def test_every_recipe_has_a_line_of_its_own() -> None:
    lines = recipe_list()
    assert [line.split()[0] for line in lines[1 : 1 + len(recipe_names())]] == recipe_names()
    columns = lines[0].index("objective")
    assert all(line[columns - 2 : columns] == "  " for line in lines[: 1 + len(recipe_names())])


def test_every_published_recipe_states_its_pairs_and_their_lengths() -> None:
    for name in PUBLISHED:
        text = recipe_text(name)
        assert "--objective " in recipe_comment(name, "Pairs"), name
        header = text[: text.index("\n\n")]
        for length in re.findall(r"\d+", summary(name).pairs):
            assert length in header, (name, length)


def test_objectives_are_read_from_keys() -> None:
    found = {recipe.name: recipe.objective for recipe in map(summary, recipe_names())}
    assert found["bert_base"] == "MLM 15%, NSP"
    assert found["albert_base"] == "MLM 15%, SOP"
    assert found["electra_small"] == "RTD 15%"
    assert found["xlnet_base"] == "PLM 17%"
    assert found["mmbert_small"] == "MLM 30% > 15% > 5%"
    assert found["modernbert_zh"] == "MLM 15% > 30% > 15%, whole words"

    causal = load_recipe("roberta_base", ["objective.kind=clm"])
    assert objective_text([causal, load_recipe("roberta_base", [])], "full_sentences") == "CLM > MLM 15%"

    # A causal phase masks nothing, so neither its share nor its kind of masks counts.
    masked = load_recipe("roberta_base", ["masking.prob=0.3", "masking.kind=whole_word"])
    assert objective_text([causal, masked], "full_sentences") == "CLM > MLM 30%, whole words"
    assert objective_text([causal], "full_sentences") == "CLM"


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_hardware_is_what_the_steps_cost(name: str) -> None:
    """The days are operations over 40% of a peak."""
    found = re.fullmatch(r"(\d+) H100, (\d+) (hours?|days)", recipe_comment(name, "Hardware"))
    assert found is not None, name
    hours = int(found[2]) * HOURS[found[3]]

    recipe = load_recipe(name, [])
    operations = sum(operations_of(phase.recipe, phase.last_step - phase.steps_before) for phase in phases_of(recipe))
    expected = operations / PEAK_SHARE / int(found[1]) / 3600
    assert hours == pytest.approx(expected, rel=0.2, abs=1)


def operations_of(recipe: Recipe, steps: int) -> float:
    """Of all steps of a phase; a ramp's batches have their mean size."""
    steps = min(steps, recipe.run.stop_at or steps)
    batch = recipe.batch
    length = recipe.data.max_length or recipe.model.max_position_embeddings
    tokens = batch.global_tokens or batch.size * length
    saved_steps = 0.0
    if batch.ramp_steps and batch.ramp_from:
        saved_steps = batch.ramp_steps * (1 - batch.ramp_from / batch.size) / 2

    probabilities = [recipe.masking.prob, recipe.masking.final_prob or recipe.masking.prob]
    assert recipe.model.vocab_size is not None
    shape = encoder_shape(recipe.model, recipe.model.vocab_size)
    return (steps - saved_steps) * tokens * flops_per_token(shape, length, sum(probabilities) / 2)


@pytest.mark.parametrize(("count", "text"), [(7_512_353, "7.5M"), (110_106_428, "110M"), (3_869_260_674, "3.9B")])
def test_sizes_are_rounded_as_people_say_them(count: int, text: str) -> None:
    assert rounded(count) == text
