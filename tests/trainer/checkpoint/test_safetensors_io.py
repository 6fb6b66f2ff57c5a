"""A created file with its elements at their places is what safetensors would have written; other files are refused."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from schemas.errors import CheckpointError
from trainer.checkpoint.safetensors_io import TensorFile, create, layout_of

SHAPES = st.dictionaries(
    st.text("abc.é", min_size=1, max_size=8), st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=4
)


@settings(max_examples=30, deadline=None)
@given(shapes=SHAPES, seed=st.integers(0, 99))
def test_elements_at_their_places_make_up_the_file(
    tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, tuple[int, ...]], seed: int
) -> None:
    path = tmp_path_factory.mktemp("file") / "t.safetensors"
    torch.manual_seed(seed)
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    layout = layout_of(shapes)

    create(path, shapes)
    assert path.stat().st_size == layout.size
    with path.open("r+b") as file:
        for name, tensor in tensors.items():
            file.seek(layout.begins[name])
            file.write(tensor.numpy().tobytes())

    found = load_file(path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    with TensorFile(path) as file:
        assert file.shapes == shapes
        for name, tensor in tensors.items():
            assert torch.equal(file.read(name, 0, tensor.numel()), tensor.flatten())


def test_files_of_the_library_are_read(tmp_path: Path) -> None:
    """Its tensors are in another order, with metadata."""
    tensors = {"b": torch.randn(3, 2), "a": torch.randn(()), "c": torch.zeros(0)}
    save_file(tensors, tmp_path / "t.safetensors", {"format": "pt"})
    with TensorFile(tmp_path / "t.safetensors") as file:
        assert all(torch.equal(file.read(name, 0, t.numel()), t.flatten()) for name, t in tensors.items())


JUNK = [b"", b"\xff" * 40, (4).to_bytes(8, "little") + b"[1]}"]


@pytest.mark.parametrize("content", JUNK, ids=["empty", "bytes", "list"])
def test_what_is_not_such_a_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"t\.safetensors is not a safetensors file"):
        TensorFile(tmp_path / "t.safetensors")
