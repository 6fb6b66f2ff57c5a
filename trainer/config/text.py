"""Writes a recipe as TOML, so that a run's folder shows how to repeat the run."""

from __future__ import annotations

import tomli_w

from trainer.config.schema import Recipe


def dump_recipe(recipe: Recipe) -> str:
    """Return the recipe as TOML with every default written out."""
    content = recipe.model_dump(exclude_none=True)
    if not recipe.phases:
        del content["phases"]  # an empty array would be written above all sections
    return tomli_w.dumps(content)
