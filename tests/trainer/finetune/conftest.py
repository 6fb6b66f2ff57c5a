"""Small encoders with random weights, in folders as transformers writes them, for tests of fine-tuning."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoTokenizer

from tests.trainer.ranks import run_ranks

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
    "initializer_range": 0.1,
}

CONFIGS = {
    "bert": ("BertConfig", {}),
    "roberta": ("RobertaConfig", {"type_vocab_size": 1}),
    "albert": ("AlbertConfig", {"embedding_size": 16}),
    "electra": ("ElectraConfig", {"embedding_size": 16}),
    "modernbert": ("ModernBertConfig", {"local_attention": 16, "global_attn_every_n_layers": 2}),
    "eurobert": ("EuroBertConfig", {"num_key_value_heads": 1}),
    "xlnet": ("XLNetConfig", {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48, "initializer_range": 0.1}),
}
"""The configuration class of each family, and what is said in another way or besides SIZES."""

Encoder = Callable[[str], Path]
Finetune = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def finetune() -> Finetune:
    """Return a function that runs `finetune FOLDER --task TASK --output OUTPUT FLAGS...` and waits for its end."""

    def call(folder: Path, task: Path, output: Path | str, *flags: object) -> subprocess.CompletedProcess[str]:
        words = [str(folder), "--task", str(task), "--output", str(output), *map(str, flags)]
        return run_ranks(1, words, program="trainer.finetune")

    return call


@pytest.fixture(scope="session")
def encoder(vocab: Path, byte_vocab: Path, xlnet_vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The folder of a family's encoder, with the heads of its pretraining."""
    vocabularies = {"roberta": byte_vocab, "xlnet": xlnet_vocab}
    made: dict[str, Path] = {}

    def folder_of(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            write_encoder(family, vocabularies.get(family, vocab), folder)
            made[family] = folder
        return made[family]

    return folder_of


def write_encoder(family: str, vocabulary: Path, folder: Path) -> None:
    """Write an encoder with random weights and the tokenizer of a vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(vocabulary)
    name, changes = CONFIGS[family]
    sizes = {} if family == "xlnet" else SIZES
    config = getattr(transformers, name)(
        **(sizes | changes),
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        mask_token_id=tokenizer.mask_token_id,
    )
    torch.manual_seed(0)
    is_pretraining = type(config) in transformers.AutoModelForPreTraining._model_mapping
    auto_class = transformers.AutoModelForPreTraining if is_pretraining else transformers.AutoModelForMaskedLM
    auto_class.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
