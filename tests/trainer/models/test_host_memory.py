"""How much memory is available: on the machine, or in the container if that has less."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.config.load import load_recipe
from trainer.config.shipped import recipe_names
from trainer.models import host_memory
from trainer.models.families import encoder_shape
from trainer.models.host_memory import available_bytes, minimum_parameters
from trainer.models.parameter_count import count_model

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:    5000000 kB\n"
MACHINE = 1024 * 5_000_000


@pytest.mark.parametrize(
    ("limit", "used", "cache", "expected"),
    [
        ("max", "70", "0", MACHINE),
        ("1000000", "700000", "0", 300_000),
        ("1000000", "700000", "500000", 800_000),  # the container's page cache can be dropped
        ("1000000", "1000500", "0", 0),
        ("99999999999999", "70", "0", MACHINE),
    ],
)
def test_the_smaller_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, used: str, cache: str, expected: int
) -> None:
    contents = {
        "meminfo": MEMINFO,
        "memory.max": f"{limit}\n",
        "memory.current": f"{used}\n",
        "memory.stat": f"anon 5\ninactive_file {cache}\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(host_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path)
    assert available_bytes() == expected


def test_without_these_files_free_pages_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "MEMINFO", tmp_path / "none")
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path)
    assert available_bytes() > 0


SHARED_KEYS = ["model.num_attention_heads=12", "model.num_key_value_heads=1"]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, []) for name in recipe_names()),
        ("eurobert_210m", SHARED_KEYS),
        ("albert_base", ["model.sharing=none"]),
        ("modernbert_base", ["model.max_position_embeddings=1000000"]),  # rotations need no table of positions
    ],
)
def test_no_more_weights_are_counted_than_there_are(name: str, changes: list[str]) -> None:
    """Otherwise a model that fits would be refused. Without a vocabulary, at least its layers count."""
    model = load_recipe(name, changes).model
    size = model.vocab_size or 30522
    exact = count_model(encoder_shape(model, size))
    assert minimum_parameters(model.model_copy(update={"vocab_size": size})) == exact
    assert 0 < minimum_parameters(model.model_copy(update={"vocab_size": None})) < exact
