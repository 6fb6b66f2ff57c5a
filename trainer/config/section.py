"""The base class of every table of a recipe."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationInfo, field_validator

from schemas.urls import normal

Place = Annotated[str, StringConstraints(min_length=1), AfterValidator(normal)]
"""A path or a URL."""


class Section(BaseModel):
    """An immutable table that accepts no unknown keys and no infinite or NaN numbers.

    Every field of a section has a description. It is printed when the field's value is wrong, and docs/recipes.md is
    generated from it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for a number, which pydantic would take for 1 and 0."""
        kinds = _kinds_in(cls.model_fields[info.field_name or ""].annotation)
        values = value if isinstance(value, list) else [value]
        if kinds & {int, float} and bool not in kinds and any(isinstance(each, bool) for each in values):
            raise ValueError("expected a number")
        return value


def _kinds_in(annotation: Any) -> set[Any]:
    """Return the types that an annotation such as list[float] | Literal["auto"] names: float and str."""
    inner = get_args(annotation)
    if inner:
        return set().union(*map(_kinds_in, inner))
    return {annotation if isinstance(annotation, type) else type(annotation)}
