"""No model that fits into memory is refused."""

from __future__ import annotations

import pytest

from trainer.config.load import load_recipe, recipe_names
from trainer.models.families import encoder_shape
from trainer.models.host_memory import minimum_parameters
from trainer.models.parameter_count import count_model

SHARED_KEYS = ["model.num_attention_heads=12", "model.num_key_value_heads=1"]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, []) for name in recipe_names()),
        ("eurobert_210m", SHARED_KEYS),
        ("albert_base", ["model.sharing=none"]),
        ("modernbert_base", ["model.max_position_embeddings=1000000"]),  # rotations need no table of positions
    ],
)
def test_no_more_weights_are_counted_than_there_are(name: str, changes: list[str]) -> None:
    """Otherwise a model that fits would be refused. Without a vocabulary, at least its layers count."""
    model = load_recipe(name, changes).model
    size = model.vocab_size or 30522
    exact = count_model(encoder_shape(model, size))
    assert minimum_parameters(model.model_copy(update={"vocab_size": size})) == exact
    assert 0 < minimum_parameters(model.model_copy(update={"vocab_size": None})) < exact
