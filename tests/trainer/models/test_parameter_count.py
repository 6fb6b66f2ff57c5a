"""Parameters counted from sizes alone, against modules and against what was published."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import AutoConfig

from tests.small_models import SMALL_VOCABULARY
from trainer.config.load import load_recipe
from trainer.config.sections import ModelSection
from trainer.models.families import encoder_shape
from trainer.models.hf_config import hf_config
from trainer.models.hf_tables import AUTO_CLASSES
from trainer.models.parameter_count import count_encoder, count_model
from trainer.models.pretraining import model_of
from trainer.models.shape import EncoderShape

PUBLISHED = {
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
"""The encoder that is used afterwards, and all that is trained. Older families are in test_encoder.py."""

SHARED = [f"model.sharing={sharing}" for sharing in ("none", "attention", "feed_forward", "all")]


def shape_of(model: ModelSection) -> EncoderShape:
    return encoder_shape(model, model.vocab_size or 1000)


def modules(shape: EncoderShape) -> tuple[int, int]:
    """What the modules of a model have: its first encoder, and all."""
    with torch.device("meta"):
        model = model_of(shape)
    parts = (model.encoders()[0], model)
    encoder, whole = (sum(parameter.numel() for parameter in part.parameters()) for part in parts)
    return encoder, whole


@pytest.mark.parametrize("name", ["tiny", "roberta_base", "megatron_345m", *PUBLISHED])
def test_counts_are_those_of_the_modules(name: str) -> None:
    shape = shape_of(load_recipe(name, []).model)
    assert (count_encoder(shape), count_model(shape)) == modules(shape)
    assert modules(shape) == PUBLISHED.get(name, modules(shape))


@pytest.mark.parametrize("sharing", SHARED)
def test_shared_layers_are_counted_once(sharing: str) -> None:
    shape = shape_of(load_recipe("albert_base", [sharing, "model.num_hidden_groups=3"]).model)
    assert (count_encoder(shape), count_model(shape)) == modules(shape)


@pytest.mark.parametrize("name", ["modernbert_base", "eurobert_210m", "esm2_8m", "nomic_bert", "xlnet_base"])
def test_transformers_models_have_as_many(name: str) -> None:
    """Besides what pretraining does not have: ESM's head for contacts of amino acids."""
    shape = shape_of(load_recipe(name, []).model)
    settings = hf_config(shape, SMALL_VOCABULARY)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    with torch.device("meta"):
        theirs = getattr(transformers, AUTO_CLASSES[shape.family]).from_config(config)

    names = [name for name, _ in theirs.named_parameters() if "contact_head" not in name]
    assert sum(theirs.get_parameter(name).numel() for name in names) == count_model(shape)
