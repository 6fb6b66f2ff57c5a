"""What cannot be tiled: the run says so before its first step, and the model is unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from schemas.errors import DataError, UsageError
from tests.small_models import SMALL_VOCABULARY, random_model, section, vocabulary_of
from tests.trainer.models.tiling_models import fresh, large_section, small_section, weights, write_parts
from trainer.config.load import load_recipe
from trainer.models.pretraining import build_model
from trainer.models.tiling import tile_model

REFUSED = {
    "larger": (
        ["hidden_size=32", "num_attention_heads=2", "num_hidden_layers=3"],
        "is larger than the recipe's model: num_hidden_layers is 4, the recipe makes it 3; hidden_size is 48",
    ),
    "wider heads": (["hidden_size=96"], "its heads have 16 values, the recipe's 32. Keep hidden_size / num_att"),
    "other positions": (["max_position_embeddings=64"], "max_position_embeddings is 128, the recipe makes it 64"),
    "another family": (["family=megatron-bert"], "model_type is 'bert', the recipe makes it 'megatron-bert'"),
    "another and smaller family": (["family=roberta", "num_hidden_layers=2"], "model_type is 'bert', the recipe makes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_models_are_refused(case: str, tmp_path: Path) -> None:
    changes, message = REFUSED[case]
    folder = write_parts(random_model(section("bert"), SMALL_VOCABULARY), tmp_path)
    large = fresh(section("bert", *changes))
    before = weights(large)
    with pytest.raises(UsageError, match=re.escape(message)):
        tile_model(large, str(folder), SMALL_VOCABULARY)
    assert all(torch.equal(weight, before[name]) for name, weight in weights(large).items())


def test_shapes_of_some_families_are_refused(tmp_path: Path) -> None:
    eurobert = write_parts(random_model(section("eurobert"), SMALL_VOCABULARY), tmp_path / "eurobert")
    large = fresh(section("eurobert", "hidden_size=96", "num_attention_heads=6", "num_key_value_heads=3"))
    with pytest.raises(UsageError, match="3 heads share a head of keys there, 2 in the recipe"):
        tile_model(large, str(eurobert), SMALL_VOCABULARY)

    electra = write_parts(random_model(small_section("electra"), SMALL_VOCABULARY), tmp_path / "electra")
    large = fresh(large_section("electra", "embedding_size=96"))
    with pytest.raises(UsageError, match="only one of the two has a matrix between embeddings and layers"):
        tile_model(large, str(electra), SMALL_VOCABULARY)


def test_another_vocabulary_and_a_broken_size_are_refused(tmp_path: Path) -> None:
    folder = write_parts(random_model(section("bert"), SMALL_VOCABULARY), tmp_path)
    other = vocabulary_of(SMALL_VOCABULARY.size + 1)
    with pytest.raises(DataError, match="has a vocabulary of 60 tokens, the pairs of 61"):
        tile_model(build_model(large_section("bert"), other.size, 5), str(folder), other)

    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": 0}))
    with pytest.raises(DataError, match=r"config\.json: num_attention_heads must be a whole number above 0, found 0"):
        tile_model(fresh(large_section("bert")), str(folder), SMALL_VOCABULARY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.init_from=a"], "model.init_from a and model.tile_from small both give the first weights"),
        (["model.family=xlnet"], 'model.tile_from is not for model.family "xlnet"'),
    ],
)
def test_recipes_that_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        load_recipe("tests/recipes/small_bert.toml", ["model.tile_from=small", *settings])
