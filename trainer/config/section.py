"""The base class of every table of a recipe."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from schemas.urls import normal

Place = Annotated[str, AfterValidator(normal)]
"""A path or a URL."""


class Section(BaseModel):
    """An immutable table that accepts no unknown keys and no infinite or NaN numbers.

    Every field of a section has a description. It is printed when the field's value is wrong, and docs/recipes.md is
    generated from it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
