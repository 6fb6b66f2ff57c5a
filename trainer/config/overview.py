"""Summaries of the shipped recipes, for `clozeline recipes` and for the table in docs/recipes.md.

Objectives and lengths are computed from the recipes themselves. Three facts have no key and come from the comment at
the top of a recipe: its size (`# Parameters: 110,106,428, heads included`), how its pairs are made (`# Pairs:
--objective nsp ...`), and the hardware and time that it needs (`# Hardware: 8 H100, 7 days`).

Nothing here imports torch, so that the list appears at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainer.config.load import load_recipe
from trainer.config.phases import phases_of
from trainer.config.schema import Recipe
from trainer.config.shipped import recipe_comment, recipe_description, recipe_names
from trainer.models.families import FAMILIES

HARDWARE_NOTE = (
    "Hardware: GPUs of 80 GB, and the days that they take at 40% of an H100's peak (989 TFLOPS). Small models "
    "reach less."
)

PAIR_OBJECTIVES = {"nsp": "NSP", "sop": "SOP"}
"""Values of the pipeline's --objective that give rows pair labels, with the names in the list."""

HEADER = ("name", "parameters", "objective", "pairs", "hardware")


@dataclass(frozen=True)
class RecipeSummary:
    """One shipped recipe in words. parameters: with the heads; None if its comment does not say how many."""

    name: str
    description: str
    parameters: int | None
    objective: str
    pairs: str
    hardware: str

    def cells(self) -> tuple[str, str, str, str, str]:
        """Return the recipe's cells in the list, in the order of HEADER."""
        size = "by vocabulary" if self.parameters is None else rounded(self.parameters)
        return self.name, size, self.objective, self.pairs, self.hardware


def summaries() -> list[RecipeSummary]:
    """Return a summary of every shipped recipe, in alphabetical order."""
    return [summary(name) for name in recipe_names()]


def summary(name: str) -> RecipeSummary:
    """Return the summary of a shipped recipe. Raises UsageError if there is none of this name."""
    recipe = load_recipe(name, [])
    phases = [phase.recipe for phase in phases_of(recipe)]
    return RecipeSummary(
        name=name,
        description=recipe_description(name),
        parameters=stated_parameters(name),
        objective=objective_text(phases, pairs_objective(name)),
        pairs=f"{pairs_objective(name)}, {lengths_text(phases)} tokens",
        hardware=recipe_comment(name, "Hardware"),
    )


def pairs_objective(name: str) -> str:
    """Return the --objective that a shipped recipe's pairs are made with, or nsp if its comment names none."""
    found = re.search(r"--objective (\w+)", recipe_comment(name, "Pairs"))
    return found[1] if found else "nsp"


def stated_parameters(name: str) -> int | None:
    """Return the number of parameters that a shipped recipe's comment states, or None without one."""
    found = re.match(r"[\d,]+\d", recipe_comment(name, "Parameters"))
    return int(found[0].replace(",", "")) if found else None


def objective_text(phases: list[Recipe], pairs: str) -> str:
    """Return what the phases predict, and the share of tokens. Example: "MLM 30% > 15%, whole words, NSP".

    pairs: the --objective that the pairs are made with.
    """
    first = phases[0]
    traits = FAMILIES[first.model.family]
    kinds = {"clm": "CLM"}
    masked = "RTD" if traits.replaced_tokens else "PLM" if traits.two_streams else "MLM"
    names = _without_repetition([kinds.get(phase.objective.kind, masked) for phase in phases])

    # A causal phase has no masks, whatever its [masking] says.
    maskings = [phase.masking for phase in phases if phase.objective.kind != "clm"]
    shares: list[str] = []
    for masking in maskings:
        shares += [f"{share:.0%}" for share in (masking.prob, masking.final_prob) if share is not None]

    parts = [f"{' > '.join(names)} {' > '.join(_without_repetition(shares))}".strip()]
    if maskings and maskings[0].kind == "whole_word":
        parts.append("whole words")
    if traits.pair_head and pairs in PAIR_OBJECTIVES:
        parts.append(PAIR_OBJECTIVES[pairs])
    return ", ".join(parts)


def lengths_text(phases: list[Recipe]) -> str:
    """Return the maximum tokens of a row in each phase. Example: "1024 > 8192"."""
    lengths = [str(phase.data.max_length or phase.model.max_position_embeddings) for phase in phases]
    return " > ".join(_without_repetition(lengths))


def rounded(parameters: int) -> str:
    """Return a number of parameters, rounded. Example: 110,106,428 -> "110M"."""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.1f}B"
    if parameters >= 10e6:
        return f"{parameters / 1e6:.0f}M"
    return f"{parameters / 1e6:.1f}M"


def recipe_list() -> list[str]:
    """Return the lines that `clozeline recipes` prints: a table with one line for each recipe, and a note."""
    table = [HEADER, *[recipe.cells() for recipe in summaries()]]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADER))]

    lines = []
    for row in table:
        padded = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return [*lines, "", HARDWARE_NOTE, "`clozeline recipes NAME` prints a recipe with the source of every number."]


def _without_repetition(words: list[str]) -> list[str]:
    """Return the words without consecutive repetitions."""
    return [word for i, word in enumerate(words) if i == 0 or word != words[i - 1]]
