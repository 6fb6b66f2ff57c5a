"""Builds small random models of every family, and converts our batches to transformers' inputs."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from schemas.vocabulary import Vocabulary
from schemas.vocabulary_kinds import kind_of
from trainer.config.load import load_recipe
from trainer.config.sections import ModelSection
from trainer.models.batch import PackedBatch
from trainer.models.electra import PartModel
from trainer.models.hf_config import AUTO_CLASSES, hf_config
from trainer.models.hf_names import constant_tensors, to_hf
from trainer.models.pretraining import PretrainingModel
from trainer.models.starting_weights import build_model

FAMILIES = ["bert", "roberta", "albert", "megatron-bert", "modernbert", "eurobert", "esm", "nomic_bert", "gte"]
SIZES = [
    "hidden_size=48",
    "num_attention_heads=3",
    "intermediate_size=80",
    "num_hidden_layers=4",
    "initializer_range=0.05",
]
OWN_SIZES = {
    "albert": ["embedding_size=24", "num_hidden_groups=2"],
    "modernbert": ["window=6"],
    "eurobert": ["num_key_value_heads=1"],
}
"""Small values for keys that only one family has."""


def vocabulary_of(size: int) -> Vocabulary:
    """Return a WordPiece vocabulary of `size` tokens, with made-up words."""
    specials = kind_of("wordpiece").specials[0].all
    return Vocabulary("wordpiece", specials + tuple(f"w{i}" for i in range(size - len(specials))), "")


SMALL_VOCABULARY = vocabulary_of(60)


def section(family: str, *changes: str) -> ModelSection:
    """Return a small [model] of a family, based on tests/recipes/small_bert.toml. changes: further "key=value"."""
    settings = [f"family={family}", *SIZES, *OWN_SIZES.get(family, []), *changes]
    return load_recipe("tests/recipes/small_bert.toml", [f"model.{setting}" for setting in settings]).model


def random_model(model: ModelSection, vocabulary: Vocabulary) -> PretrainingModel:
    """Return a model in which all weights are random, also biases and norms, so that mixed-up names show in outputs.

    The weights are as large as a trained model's. If they were ten times larger, float32 would round by more than the
    tolerance of 1e-5 that tests use.
    """
    built = build_model(model, vocabulary.size, 0, vocabulary.special_id("mask"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return built.eval()


def write_hf(model: PartModel, vocabulary: Vocabulary, folder: Path, **changes: object) -> Path:
    """Write the model as a Hugging Face folder without a tokenizer. changes: keys of config.json to replace."""
    folder.mkdir(parents=True, exist_ok=True)
    config = hf_config(model.shape, vocabulary) | changes
    (folder / "config.json").write_text(json.dumps(config))
    weights = to_hf({name: p.detach() for name, p in model.named_parameters()}, model.shape)
    weights |= constant_tensors(model.shape)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def auto_class(family: str):
    """Return the Auto class of transformers that opens a family's exports."""
    return getattr(transformers, AUTO_CLASSES[family])


def as_theirs(model: PretrainingModel, vocabulary: Vocabulary, folder: Path):
    """Return the same model in transformers, opened from `folder`, where it is written first."""
    loader = auto_class(model.shape.family)
    theirs, loading = loader.from_pretrained(write_hf(model, vocabulary, folder), output_loading_info=True)
    assert not any(loading.values()), loading
    return theirs.eval()


def padded(batch: PackedBatch, segments: int, pad: int) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
    """Return the batch as transformers' padded inputs, and the (row, position) of each packed token in them."""
    place = (batch.sequence_T, batch.positions_T)
    ids = torch.full((len(batch.sequence_starts_S), batch.longest), pad)
    segments_SL = torch.zeros_like(ids)
    attention = torch.zeros_like(ids)
    ids[place] = batch.ids_T
    segments_SL[place] = batch.segments_T
    attention[place] = 1
    inputs = {"input_ids": ids, "attention_mask": attention}
    return inputs if segments < 2 else inputs | {"token_type_ids": segments_SL}, place


def pair_logits(output) -> Tensor | None:
    """Return the pair logits of a transformers output, whose name depends on the class; None if it has none."""
    return next((output[name] for name in ("seq_relationship_logits", "sop_logits") if name in output), None)


def mlm_logits(output) -> Tensor:
    return output["prediction_logits"] if "prediction_logits" in output else output["logits"]


def alone(batch: PackedBatch, s: int) -> PackedBatch:
    """Return sequence `s` of a batch as a separate batch."""
    tokens = batch.sequence_T == s
    masks = batch.sequence_T[batch.masked_positions_K] == s
    count = int(tokens.sum())
    return PackedBatch(
        ids_T=batch.ids_T[tokens],
        segments_T=batch.segments_T[tokens],
        positions_T=batch.positions_T[tokens],
        sequence_T=torch.zeros(count, dtype=torch.long),
        sequence_starts_S=torch.zeros(1, dtype=torch.long),
        longest=count,
        masked_positions_K=batch.masked_positions_K[masks] - batch.sequence_starts_S[s],
        labels_K=batch.labels_K[masks],
        pair_labels_S=batch.pair_labels_S[s : s + 1],
        tokens=count,
        predicted=int(masks.sum()),
        paired=1,
        mask_id=batch.mask_id,
    )


def close(what: str, found: Tensor, expected: Tensor, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    """Equal up to rounding; `pytest -s` shows how far."""
    print(f"{what}: {float((found - expected).detach().abs().max()):.1e}")
    torch.testing.assert_close(found, expected, atol=atol, rtol=rtol)


def gradient(model: PretrainingModel, loss: Tensor) -> Tensor:
    """Of all parameters, end to end."""
    found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return torch.cat([g.flatten() for g in found])
