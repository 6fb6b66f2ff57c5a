"""Builds the recipe of a step: the recipe that the steps file names, with the model shape of the encoder to continue.

It is written to DIR/STEP/recipe.toml, which `clozeline train --config` accepts as well.
"""

from __future__ import annotations

from typing import Any

import tomli_w

from schemas import storage
from schemas.errors import UsageError
from schemas.manifest import read_manifest
from schemas.urls import normal
from trainer.config.parse import apply_overrides, parse_recipe
from trainer.config.schema import Recipe
from trainer.config.validate import check_recipe
from trainer.finetune.steps.schema import AdaptSection
from trainer.finetune.steps.steps_file import content_of_recipe
from trainer.logs import logger
from trainer.models.families import check_memory
from trainer.models.hf_config import model_of_folder

KEPT_OF_MODEL = ("hidden_dropout_prob", "attention_probs_dropout_prob")
"""Keys of a recipe's [model] that are kept, because they are not part of the encoder's shape."""

OF_OTHER_PAIRS = ("weights", "vocab", "statistics")
"""Keys of a recipe's [data] that apply only to the recipe's own data.pairs."""

DEFAULT_MAX_LENGTH = 128


def changed_content(section: AdaptSection) -> dict[str, Any]:
    """Return the content of a step's recipe with the step's `set` applied. Raises UsageError and StorageError."""
    content = content_of_recipe(section.recipe)
    apply_overrides(content, section.set)
    if content.get("phases"):
        raise UsageError(
            f"the recipe {section.recipe} has phases with separate rows, which a step of continued pretraining "
            'cannot have. Remove them, or add "phases=none" to the changes of the step.'
        )
    return content


def max_length_of(section: AdaptSection, model: dict[str, Any]) -> int:
    """Return the maximum tokens per row of a step: make_pairs.max_length, or the recipe's data.max_length, or 128.

    The last two are capped at the encoder's limit. Raises UsageError if make_pairs.max_length exceeds it.
    """
    longest = model["max_position_embeddings"]
    asked = section.make_pairs.max_length
    if asked is not None and asked > longest:
        raise UsageError(
            f"make_pairs.max_length is {asked}, but the encoder takes rows of at most {longest} tokens. Lower it."
        )

    data = changed_content(section).get("data", {})
    return min(asked or data.get("max_length") or DEFAULT_MAX_LENGTH, longest)


def step_recipe(section: AdaptSection, folder: str, pairs: list[str], output: str) -> dict[str, Any]:
    """Return the content of the recipe that continues the encoder in `folder` on folders of pairs, not yet validated.

    output: the run's folder.
    """
    content = changed_content(section)
    before = content.get("model", {})
    content["model"] = model_of_folder(folder) | {key: before[key] for key in KEPT_OF_MODEL if key in before}
    content["model"]["init_from"] = folder

    data = content.get("data", {})
    own = data.get("pairs", [])
    if [normal(str(path)) for path in (own if isinstance(own, list) else [own])] != pairs:
        data = {key: value for key, value in data.items() if key not in OF_OTHER_PAIRS}
    content["data"] = data | {"pairs": pairs}
    content["run"] = content.get("run", {}) | {"output": output}
    return content


def fitted(content: dict[str, Any], section: AdaptSection) -> dict[str, Any]:
    """Return the content of a recipe with batch size and number of steps adapted to the step's pairs.

    A batch has at most as many rows or tokens as there are. If `epochs` is set, run.max_steps is at most the number of
    steps that fit into that many passes, but at least 1.
    """
    recipe = validated(content, section)
    unit = "rows" if recipe.batch.global_tokens is None else "tokens"
    manifests = [read_manifest(folder, "pairs") for folder in recipe.data.folders]
    available = sum(manifest.totals[unit] for manifest in manifests)

    batch = dict(content["batch"])
    size = recipe.batch.size
    if size > available:
        # A larger batch would repeat rows within a step, which the trainer rejects.
        micro_batch = min(recipe.batch.micro_batch or 1, available)
        size = available // micro_batch * micro_batch
        batch["global_batch" if unit == "rows" else "global_tokens"] = size
        if recipe.batch.micro_batch is not None:
            batch["micro_batch"] = micro_batch
        logger.info("A batch has %s %s instead of %s: all that the text has.", size, unit, recipe.batch.size)

    steps = recipe.run.max_steps
    if section.epochs is not None:
        steps = min(steps, max(1, int(section.epochs * available / size)))
    return content | {"batch": batch, "run": content["run"] | {"max_steps": steps}}


def validated(content: dict[str, Any], section: AdaptSection) -> Recipe:
    """Return the recipe of a step. Raises UsageError that names each wrong key."""
    name = f"the recipe {section.recipe}"
    recipe = parse_recipe(content, name)
    check_recipe(recipe, name)
    check_memory(recipe, name)
    return recipe


def write_recipe(content: dict[str, Any], path: str) -> None:
    """Write a recipe as TOML. Raises StorageError."""
    storage.publish(path, tomli_w.dumps(content).encode())
