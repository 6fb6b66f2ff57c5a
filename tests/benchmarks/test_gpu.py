"""The GPU benchmark's logic, on a CPU with the smallest recipe: nobody can look into it where it runs."""

import json
import subprocess
import sys
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
import torch

from benchmarks import gpu


def test_both_sides_run_and_figures_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "figures.jsonl"
    small = [
        "--recipes",
        "tests/recipes/small_bert.toml",
        "--tokens",
        "600",
        "--steps",
        "1",
        "--device",
        "cpu",
        "--no_compile",
    ]
    found = gpu.main([*small, "--output", str(out)])
    assert [(figures.rows, figures.who) for figures in found] == [
        (rows, who) for rows in gpu.ROWS for who in ("ours", "transformers")
    ]
    assert [json.loads(line)["who"] for line in out.read_text().splitlines()] == ["ours", "transformers"] * 3
    assert all(figures.tokens_per_second > 0 and figures.mfu is None for figures in found)


def test_the_two_sides_train_on_the_same_loss() -> None:
    """Fresh weights of different draws: both losses are near the logarithm of the vocabulary's size."""
    for name in ("bert_base", "roberta_base", "albert_base", "megatron_345m"):
        whole = gpu.shape_of(name)
        groups = min(2, whole.num_hidden_groups)
        shape = replace(whole, num_hidden_layers=2, num_hidden_groups=groups, vocab_size=500)
        shape = replace(
            shape,
            hidden_size=64,
            embedding_size=32 if shape.factorized else 64,
            num_attention_heads=4,
            intermediate_size=128,
        )
        batch = gpu.random_batch(shape, gpu.lengths_of("1 to 507", 900, 512), torch.device("cpu"))
        losses = [side(shape, batch, torch.device("cpu"), False)[1]() for side in (gpu.our_loss, gpu.their_loss)]
        pairs = log(2) if shape.pair_head else 0.0
        assert [loss.item() for loss in losses] == pytest.approx([log(500) + pairs] * 2, rel=0.1), name


def test_rows_are_as_described() -> None:
    lengths = gpu.lengths_of("1 to 507", 65_536, 512)
    assert lengths.double().mean() == pytest.approx(254, abs=1) and lengths.max() == 507
    assert set(gpu.lengths_of("512", 65_536, 512).tolist()) == {512}


def test_it_runs_where_the_trainer_s_packages_are_absent() -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(('deepspeed', 'pyarrow', 'pydantic', 'transformers'))\n"
        "from benchmarks import gpu\n"
        "recipe = ['--recipes', 'tests/recipes/small_bert.toml']\n"
        "small = recipe + '--rows 128 --tokens 600 --steps 1 --device cpu --no_compile'.split()\n"
        "print([figures.who for figures in gpu.main(small)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['ours']"
