"""Numbers of parameters against what was published, and no model that fits into memory is refused."""

from __future__ import annotations

import pytest
import torch

from schemas.errors import UsageError
from trainer.config.document import shipped_recipe, stated_parameters
from trainer.config.load import load_recipe, recipe_names
from trainer.config.schema import ModelSection
from trainer.models.families import check_memory, fewest_parameters
from trainer.models.starting_weights import empty_model

PUBLISHED = {
    "bert_base": (109_482_240, 110_106_428),
    "bert_large": (335_141_888, 336_226_108),
    "roberta_base": (124_055_040, 124_697_433),
    "roberta_large": (354_310_144, 355_412_057),
    "albert_base": (11_683_584, 11_813_810),
    "albert_large": (17_683_968, 17_847_474),
    "albert_xlarge": (58_724_864, 59_021_490),
    "albert_xxlarge": (222_595_584, 223_158_450),
    "megatron_345m": (335_213_568, 336_297_858),
    "megatron_1.3b": (1_276_504_064, 1_280_739_202),
    "megatron_3.9b": (3_862_663_680, 3_869_260_674),
    "modernbert_base": (149_014_272, 149_655_232),
    "modernbert_large": (394_781_696, 395_881_664),
    "modernbert_zh": (376_759_296, 377_841_664),
    "ettin_17m": (16_797_440, 16_913_600),
    "ettin_32m": (31_883_136, 32_081_344),
    "ettin_68m": (68_144_640, 68_457_664),
    "ettin_150m": (149_014_272, 149_655_232),
    "mmbert_small": (140_493_696, 140_897_536),
    "mmbert_base": (306_939_648, 307_786_240),
    "neobert": (221_665_536, 245_106_432),
    "eurobert_210m": (211_766_016, 310_266_624),
    "esm2_8m": (7_408_960, 7_512_353),
    "esm2_35m": (33_269_280, 33_501_153),
    "esm2_150m": (147_728_000, 148_139_553),
    "nomic_bert": (136_731_648, 137_354_304),
    "electra_small": (13_483_008, 14_196_219),
    "electra_base": (108_891_648, 119_386_427),
    "xlnet_base": (116_718_336, 116_750_336),
    "xlnet_large": (360_268_800, 360_300_800),
}
"""The encoder that is used afterwards, and all that is trained."""


def model_section(name: str, *changes: str) -> ModelSection:
    return shipped_recipe(name, changes).model


def parameters_of(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def all_parameters(model: ModelSection) -> int:
    return parameters_of(empty_model(model, model.vocab_size or 1))


@pytest.mark.parametrize("name", PUBLISHED)
def test_encoders_have_as_many_parameters_as_published(name: str) -> None:
    model = model_section(name)
    encoder = empty_model(model, model.vocab_size or 1).encoders()[0]
    assert (parameters_of(encoder), all_parameters(model)) == PUBLISHED[name]


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_state_how_many_parameters_they_have(name: str) -> None:
    model = model_section(name)
    assert stated_parameters(name) == (None if model.vocab_size is None else all_parameters(model))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, []) for name in recipe_names()),
        ("eurobert_210m", ["model.num_attention_heads=12", "model.num_key_value_heads=1"]),
        *(("albert_base", [f"model.sharing={sharing}"]) for sharing in ("none", "attention", "feed_forward")),
        ("modernbert_base", ["model.max_position_embeddings=1000000"]),  # rotations need no table of positions
    ],
)
def test_no_more_weights_are_counted_than_there_are(name: str, changes: list[str]) -> None:
    """Otherwise a model that fits would be refused. Without a vocabulary, at least its layers count."""
    model = model_section(name, *changes)
    assert 0 < fewest_parameters(model) < all_parameters(model)


@pytest.mark.parametrize(
    "change",
    [
        "model.num_hidden_layers=1000000000",
        "model.hidden_size=100000000000",
        "model.vocab_size=1000000000000000000",
        "model.max_position_embeddings=1000000000000000",
    ],
)
def test_absurd_sizes_are_refused_at_once(change: str) -> None:
    with pytest.raises(UsageError, match=r"small: the weights of model\.num_hidden_layers"):
        check_memory(load_recipe("tests/recipes/small_bert.toml", [change]), "small")
