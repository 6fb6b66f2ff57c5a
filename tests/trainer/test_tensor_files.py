"""Files written in parts, in any order and by any number of writers, are what safetensors would have written."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from schemas.errors import CheckpointError
from trainer.tensor_files import TensorFile, create

SHAPES = st.dictionaries(
    st.text("abc.é", min_size=1, max_size=8), st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=4
)


@settings(max_examples=30, deadline=None)
@given(shapes=SHAPES, cut=st.floats(0, 1), seed=st.integers(0, 99))
def test_parts_make_up_the_whole(tmp_path_factory, shapes: dict[str, tuple[int, ...]], cut: float, seed: int) -> None:
    path = tmp_path_factory.mktemp("file") / "t.safetensors"
    torch.manual_seed(seed)
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    create(path, shapes)
    for half in (1, 0):
        with TensorFile(path, "r+b") as file:
            for name, tensor in tensors.items():
                flat_N, middle = tensor.flatten(), int(cut * tensor.numel())
                start, end = ((0, middle), (middle, tensor.numel()))[half]
                file.write(name, start, flat_N[start:end])
            file.sync()
    found = load_file(path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    with TensorFile(path) as file:
        assert file.shapes == shapes
        for name, tensor in tensors.items():
            assert torch.equal(file.read(name, 0, tensor.numel()), tensor.flatten())


JUNK = [b"", b"\xff" * 40, (4).to_bytes(8, "little") + b"[1]}"]


@pytest.mark.parametrize("content", JUNK, ids=["empty", "bytes", "list"])
def test_what_is_not_such_a_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"t\.safetensors is not a safetensors file"):
        TensorFile(tmp_path / "t.safetensors")
