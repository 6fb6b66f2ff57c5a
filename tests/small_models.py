"""Small models of every family with random weights, and the same batches as we and as transformers take them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForPreTraining

from schemas.vocabulary import Vocabulary
from trainer.config.load import load_recipe
from trainer.config.schema import ModelSection
from trainer.models.batch import PackedBatch
from trainer.models.hf_convert import hf_config, to_hf
from trainer.models.pretraining import PretrainingModel, build_model

FAMILIES = ["bert", "roberta", "albert", "megatron-bert"]
SIZES = [
    "hidden_size=48",
    "num_attention_heads=3",
    "intermediate_size=80",
    "num_hidden_layers=4",
    "initializer_range=0.05",
]
ALBERT = ["embedding_size=24", "num_hidden_groups=2"]


def section(family: str, *changes: str) -> ModelSection:
    """The [model] of tiny.toml as a small one of a family."""
    settings = [f"family={family}", *SIZES, *(ALBERT if family == "albert" else []), *changes]
    return load_recipe("trainer/recipes/tiny.toml", [f"model.{setting}" for setting in settings]).model


def random_model(model: ModelSection, vocabulary: Vocabulary) -> PretrainingModel:
    """Random in every weight, biases and norms too, so that a confusion of names shows.

    Of a trained model's size: with weights ten times as large float32 itself rounds by more than the 1e-5 asked for.
    """
    built = build_model(model, vocabulary.size, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return built.eval()


def write_hf(model: PretrainingModel, vocabulary: Vocabulary, folder: Path, **changes: object) -> Path:
    """The model as a Hugging Face folder without a tokenizer, its config changed as asked."""
    folder.mkdir(parents=True, exist_ok=True)
    config = hf_config(model.shape, vocabulary) | changes
    (folder / "config.json").write_text(json.dumps(config))
    weights = to_hf({name: p.detach() for name, p in model.named_parameters()}, model.shape.family)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def as_theirs(model: PretrainingModel, vocabulary: Vocabulary, folder: Path):
    """The same model in transformers."""
    return AutoModelForPreTraining.from_pretrained(write_hf(model, vocabulary, folder)).eval()


def padded(batch: PackedBatch, family: str, pad: int) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
    """The batch as transformers wants it, and where the packed tokens lie in it."""
    place = (batch.sequence_T, batch.positions_T)
    ids = torch.full((len(batch.sequence_starts_S), batch.longest), pad)
    segments = torch.zeros_like(ids)
    attention = torch.zeros_like(ids)
    ids[place] = batch.ids_T
    segments[place] = batch.segments_T
    attention[place] = 1
    inputs = {"input_ids": ids, "attention_mask": attention}
    return inputs if family == "roberta" else inputs | {"token_type_ids": segments}, place


def pair_logits(output) -> Tensor | None:
    """What a class calls its pair logits."""
    return next((output[name] for name in ("seq_relationship_logits", "sop_logits") if name in output), None)


def mlm_logits(output) -> Tensor:
    return output["prediction_logits"] if "prediction_logits" in output else output["logits"]


def alone(batch: PackedBatch, s: int) -> PackedBatch:
    """Sequence `s` of a batch as a batch of its own."""
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
    )
