"""Cross-field validation of [model]: sizes that must fit each other, and the weights that a new run starts from.

Every check raises UsageError. path: names the recipe in messages.
"""

from __future__ import annotations

from schemas.errors import UsageError
from trainer.config.schema import ModelSection
from trainer.models.families import GENERATOR_SIZE, generator_sizes

ROTATED_FAMILIES = ("modernbert", "eurobert", "esm", "nomic_bert", "gte")

FAMILIES_WITH = {
    "embedding_size": ("albert", "electra"),
    "num_hidden_groups": ("albert",),
    "sharing": ("albert",),
    "num_key_value_heads": ("eurobert",),
    "rope_base": ROTATED_FAMILIES,
    "window_rope_base": ("modernbert",),
    "window": ("modernbert",),
    "global_every": ("modernbert",),
    "tied": ("eurobert",),
    "generator_size": ("electra",),
    "discriminator_weight": ("electra",),
}
"""Keys of [model] that only some families have."""


DRAWN_STARTS = {
    "initial_embeddings": "random",
    "initial_attention": "random",
    "initial_head": "random",
}
"""Keys of [model] that replace drawn weights, with the values that leave them as drawn."""


def check_model(model: ModelSection, path: str) -> None:
    """Check that the network can be built."""
    if model.hidden_size % model.num_attention_heads:
        raise UsageError(
            f"{path}: model.num_attention_heads {model.num_attention_heads} does not divide "
            f"model.hidden_size {model.hidden_size}."
        )

    if model.num_hidden_layers % (model.num_hidden_groups or 1):
        raise UsageError(
            f"{path}: model.num_hidden_groups {model.num_hidden_groups} does not divide "
            f"model.num_hidden_layers {model.num_hidden_layers}."
        )

    if model.num_attention_heads % (model.num_key_value_heads or 1):
        raise UsageError(
            f"{path}: model.num_key_value_heads {model.num_key_value_heads} does not divide "
            f"model.num_attention_heads {model.num_attention_heads}."
        )

    head_size = model.hidden_size // model.num_attention_heads
    if model.family in ROTATED_FAMILIES and head_size % 2:
        raise UsageError(
            f"{path}: heads of {head_size} cannot be rotated, which pairs their values. Choose model.hidden_size and "
            "model.num_attention_heads so that a head's size is even."
        )

    for name, families in FAMILIES_WITH.items():
        is_set = getattr(model, name) is not None
        if is_set and model.family not in families:
            *others, last = [f'"{family}"' for family in families]
            names = f"{', '.join(others)} and {last}" if others else last
            raise UsageError(
                f'{path}: model.{name} belongs to {names}; model.family is "{model.family}". Leave it out.'
            )


def check_first_weights(model: ModelSection, path: str) -> None:
    """Check that init_from and tile_from are not both set, and that the family's weights can be tiled."""
    if model.tile_from is None:
        return

    if model.init_from is not None:
        raise UsageError(
            f"{path}: model.init_from {model.init_from} and model.tile_from {model.tile_from} both give the first "
            "weights. Leave one out: init_from is for a model of the same sizes, tile_from for a smaller one."
        )
    if model.family == "xlnet":
        raise UsageError(
            f'{path}: model.tile_from is not for model.family "xlnet", whose positions are sines and cosines with '
            "other frequencies in each width. Leave it out."
        )


def check_starting_weights(model: ModelSection, path: str) -> None:
    """Check that the model.initial_* keys do not conflict with other sources of weights or with each other."""
    asked_for = [name for name, default in DRAWN_STARTS.items() if getattr(model, name) != default]
    source = "init_from" if model.init_from is not None else "tile_from"
    if asked_for and getattr(model, source) is not None:
        off = ", ".join(f"model.{name}={DRAWN_STARTS[name]}" for name in asked_for)
        if model.initial_embedding_std is not None:
            off += ", model.initial_embedding_std=none"
        raise UsageError(
            f"{path}: model.{source} already sets all initial weights, so other starts have no use. Leave it out, or "
            f"set {off}."
        )

    if model.initial_embedding_std is not None and model.initial_embeddings == "random":
        raise UsageError(
            f'{path}: model.initial_embedding_std belongs to model.initial_embeddings "cooccurrence". Drawn embeddings '
            "have the standard deviation model.initializer_range."
        )


def check_generator(model: ModelSection, path: str) -> None:
    """Check that ELECTRA's generator can be built: its width is positive and a multiple of its number of heads."""
    if model.family != "electra":
        return

    fraction = model.generator_size or GENERATOR_SIZE
    sizes = generator_sizes(model.hidden_size, model.num_attention_heads, model.intermediate_size, fraction)
    if sizes.hidden_size == 0 or sizes.hidden_size % sizes.num_attention_heads:
        raise UsageError(
            f"{path}: model.generator_size {fraction:g} makes a generator of width {sizes.hidden_size} with "
            f"{sizes.num_attention_heads} heads, which do not divide it. Choose a fraction such as 1/4 or 1/2 of "
            f"model.hidden_size {model.hidden_size} that heads divide."
        )
