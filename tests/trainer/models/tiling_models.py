"""Small models of every family that is tiled, larger ones to fill, and their folders."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from tests.small_models import SMALL_VOCABULARY, section, write_hf
from trainer.config.sections import ModelSection
from trainer.models.parts import parts_of
from trainer.models.pretraining import PretrainingModel, build_model

GROWN = ["hidden_size=80", "num_attention_heads=5", "intermediate_size=131", "num_hidden_layers=10"]
GROWN_BY_FAMILY = {
    # Two heads of keys instead of one, each of three heads of queries.
    "eurobert": ["hidden_size=96", "num_attention_heads=6", "num_key_value_heads=2"],
    "albert": ["embedding_size=30", "num_hidden_groups=5"],
    "electra": ["embedding_size=30", "hidden_size=96", "num_attention_heads=6", "generator_size=0.5"],
}
MULTIPLE = {
    "hidden_size": 48,
    "num_attention_heads": 3,
    "intermediate_size": 80,
}
MULTIPLE_BY_FAMILY = {
    "eurobert": {"num_key_value_heads": 1},
    "albert": {"embedding_size": 24},
    "electra": {"hidden_size": 64, "num_attention_heads": 4, "embedding_size": 24},
}
"""The sizes that grow with the width, as `small_section` has them."""

ELECTRA = ["hidden_size=64", "num_attention_heads=4", "embedding_size=24", "generator_size=0.5"]


def small_section(family: str, *changes: str) -> ModelSection:
    return section(family, *(ELECTRA if family == "electra" else []), *changes)


def large_section(family: str, *changes: str) -> ModelSection:
    return section(family, *GROWN, *GROWN_BY_FAMILY.get(family, []), *changes)


def multiple_section(family: str, factor: int, *changes: str) -> ModelSection:
    """So many times as wide as `small_section`, and as deep."""
    sizes = MULTIPLE | MULTIPLE_BY_FAMILY.get(family, {})
    wide = [f"{name}={size * factor}" for name, size in sizes.items()]
    return small_section(family, *wide, *changes)


def write_parts(model: PretrainingModel, folder: Path) -> Path:
    """The folder of a model, with ELECTRA's generator inside."""
    for part in parts_of(model):
        write_hf(part.model, SMALL_VOCABULARY, folder / part.subfolder)  # type: ignore[arg-type]
    return folder


def fresh(model: ModelSection) -> PretrainingModel:
    return build_model(model, SMALL_VOCABULARY.size, 5, SMALL_VOCABULARY.special_id("mask"))


def weights(model: PretrainingModel) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters(remove_duplicate=False)}
