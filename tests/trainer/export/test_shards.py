"""Weights that are written piece by piece: the library's bytes, in files that are cut as transformers cuts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.small_models import FAMILIES, section
from trainer.export import shards
from trainer.export.shards import Source, cut_into_shards, sources_of, write_weights
from trainer.models.families import encoder_shape
from trainer.models.hf_names import constant_tensors, to_hf
from trainer.models.pretraining import build_model
from trainer.models.shape import EncoderShape


@pytest.fixture(params=FAMILIES)
def weights(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[EncoderShape, Path, dict[str, Tensor]]:
    """A shape, the weights of a checkpoint of it, and what transformers calls them."""
    model = build_model(section(request.param), 61, seed=3)
    ours = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_file(ours, tmp_path / "weights")
    return model.shape, tmp_path / "weights", to_hf(ours, model.shape) | constant_tensors(model.shape)


@pytest.mark.parametrize("piece", [7, 1 << 24])
def test_one_file_is_the_library_s_own(
    weights: tuple[EncoderShape, Path, dict[str, Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    shape, path, expected = weights
    monkeypatch.setattr(shards, "PIECE", piece)
    (tmp_path / "hf").mkdir()
    write_weights(path, tmp_path / "hf", shape, 10**9)
    save_file(expected, tmp_path / "expected", {"format": "pt"})
    assert [file.name for file in (tmp_path / "hf").iterdir()] == ["model.safetensors"]
    assert (tmp_path / "hf/model.safetensors").read_bytes() == (tmp_path / "expected").read_bytes()


def test_several_files_hold_every_tensor_once(
    weights: tuple[EncoderShape, Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    shape, path, expected = weights
    (tmp_path / "hf").mkdir()
    write_weights(path, tmp_path / "hf", shape, 20_000)

    index = json.loads((tmp_path / "hf/model.safetensors.index.json").read_text())
    files = sorted(file.name for file in (tmp_path / "hf").glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    found: dict[str, Tensor] = {}
    for file in files:
        tensors = load_file(tmp_path / "hf" / file)
        assert not found.keys() & tensors.keys()
        assert all(index["weight_map"][name] == file for name in tensors)
        found |= tensors
    assert found.keys() == expected.keys() == index["weight_map"].keys()
    assert all(torch.equal(found[name], values) for name, values in expected.items())
    assert index["metadata"]["total_size"] == sum(4 * values.numel() for values in expected.values())


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), most=st.integers(1, 90))
@settings(deadline=None)
def test_files_are_cut_as_transformers_cuts_them(sizes: list[int], most: int) -> None:
    tensors = {f"t{number}": torch.zeros(size) for number, size in enumerate(sizes)}
    sources = {name: Source(name, 0, tuple(values.shape)) for name, values in tensors.items()}
    # Its cuts are those of the tensors in order, but it puts a tensor that is too large into a file at the end.
    fitting = {name: values for name, values in tensors.items() if 4 * values.numel() <= 4 * most}
    theirs: Any = split_torch_state_dict_into_shards(fitting, max_shard_size=4 * most) if fitting else None
    ours = cut_into_shards({name: sources[name] for name in fitting}, 4 * most)
    if theirs is not None:
        assert [list(shard) for shard in ours] == list(theirs.filename_to_tensors.values())

    cut = cut_into_shards(sources, 4 * most)
    assert [name for shard in cut for name in shard] == list(tensors)
    for shard in cut:
        assert len(shard) == 1 or sum(source.elements for source in shard.values()) <= most


@pytest.mark.parametrize(("family", "rows"), [("bert", (48, 48, 48)), ("eurobert", (48, 16, 16))])
def test_query_key_and_value_are_parts_of_one_tensor(family: str, rows: tuple[int, int, int]) -> None:
    """Thirds, or with one head of keys and values for three of queries three fifths and a fifth each."""
    shape = encoder_shape(section(family), 61)
    found = sources_of({"encoder.layers.0.attention.qkv.weight": (sum(rows), 48)}, shape)
    starts = (0, 48 * rows[0], 48 * (rows[0] + rows[1]))
    assert list(found.values()) == [
        Source("encoder.layers.0.attention.qkv.weight", start, (count, 48))
        for start, count in zip(starts, rows, strict=True)
    ]
