"""The encoder of a fine-tuned folder is the same in every bit, and nothing of the head is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from schemas.errors import DataError
from trainer.suite.new_head import write_encoder


@pytest.mark.parametrize("shard_size", ["50GB", "20KB"])
def test_the_encoder_stays_and_the_head_goes(masked_lm: Callable[[int], Path], shard_size: str, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(masked_lm(0), id2label={0: "a", 1: "b", 2: "c"}, label2id={"a": 0})
    model = AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(tmp_path / "hf", max_shard_size=shard_size)
    AutoTokenizer.from_pretrained(masked_lm(0)).save_pretrained(tmp_path / "hf")

    write_encoder(tmp_path / "hf", tmp_path / "encoder")
    again = AutoConfig.from_pretrained(tmp_path / "encoder", num_labels=3)
    torch.manual_seed(7)
    other, told = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "encoder", config=again, output_loading_info=True
    )
    assert sorted(told["missing_keys"]) == ["classifier.bias", "classifier.weight"]
    for name, tensor in model.bert.state_dict().items():
        assert torch.equal(tensor, other.bert.state_dict()[name]), name
    content = json.loads((tmp_path / "encoder/config.json").read_text())
    assert not {"id2label", "label2id", "architectures"} & set(content)
    assert AutoTokenizer.from_pretrained(tmp_path / "encoder").is_fast

    before = (tmp_path / "encoder/model.safetensors").read_bytes()
    write_encoder(tmp_path / "hf", tmp_path / "encoder")
    assert (tmp_path / "encoder/model.safetensors").read_bytes() == before


def test_a_folder_without_an_encoder_is_an_error(masked_lm: Callable[[int], Path], tmp_path: Path) -> None:
    AutoConfig.from_pretrained(masked_lm(0)).save_pretrained(tmp_path / "hf")
    with pytest.raises(DataError, match=r"has no model\.safetensors"):
        write_encoder(tmp_path / "hf", tmp_path / "encoder")
    assert transformers.__version__
