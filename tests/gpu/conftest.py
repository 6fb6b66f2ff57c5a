"""Tests of what only a GPU can show. `make gpu` runs them; with CLOZELINE_GPU_DRY=1 they run on a CPU with stand-ins.

They need torch, numpy and what `make gpu_bundle` packs, but no Beam and no network.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_pairs import spread_lengths, write_pairs
from tests.trainer.models.flash_stand_ins import torch_flash
from trainer.models import attention, pretraining

DRY = os.environ.get("CLOZELINE_GPU_DRY") == "1"
ROOT = Path(__file__).resolve().parents[2]


def with_our_code() -> dict[str, str]:
    """The environment of a process that imports our packages, wherever it starts."""
    ours = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if DRY:
        ours["OMP_NUM_THREADS"] = "1"  # more threads mostly wait in small models, above all on a busy machine
    return os.environ | ours


@pytest.fixture(scope="session")
def device() -> torch.device:
    if DRY:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU, or CLOZELINE_GPU_DRY=1")
    return torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a dry run, the CPU takes the ways of a GPU: packed attention by stand-ins, and a padded vocabulary."""
    if not DRY:
        yield
        return
    monkeypatch.setattr(attention, "kernel_for", lambda *_: "packed")
    monkeypatch.setitem(pretraining.VOCABULARY_MULTIPLE, "cpu", 64)
    with torch_flash():
        yield


@pytest.fixture(scope="session")
def generated_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 rows of 8 to 64 tokens."""
    folder = tmp_path_factory.mktemp("gpu") / "pairs"
    write_pairs(folder, spread_lengths(8, 64, 600), 64, "wordpiece", 500)
    return folder
