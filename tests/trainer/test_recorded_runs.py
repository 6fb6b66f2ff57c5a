"""Runs whose numbers are recorded to the last bit: a change of the trainer's structure changes none of them.

The numbers are those of plain x86-64 instructions, so that no processor's own kernels show. A change that is meant to
change them writes them again: `RECORD=1 python -m pytest tests/trainer/test_recorded_runs.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests import forked
from tests.trainer.conftest import Training, logged
from trainer.export.convert import export

RECORDED = Path("tests/golden/runs.json")
PLAIN_KERNELS = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
}
NUMBERS = ("loss", "mlm_loss", "pair_loss", "rtd_loss", "grad_norm", "lr", "tokens", "eval_mlm_loss", "eval_pair_loss")
STEPS = {"model.num_hidden_layers": "2", "run.max_steps": "6", "checkpoint.every": "99", "schedule.warmup_steps": "2"}

RUNS = {
    "bert, stage 0": ["1: evaluation.pairs={held_out} evaluation.every=3 checkpoint.every=3"],
    "bert, stage 1": ["2: engine.precision=bf16 masking.kind=span"],
    "roberta, stage 2": ["2: model.family=roberta data.pairs={byte_rows} engine.zero_stage=2"],
    "albert, stage 3": [
        "2: model.family=albert model.embedding_size=16 data.pairs={sop_pairs} masking.kind=ngram engine.zero_stage=3 "
        "engine.precision=bf16"
    ],
    "megatron-bert, LAMB": ["2: model.family=megatron-bert engine.precision=fp16 optimizer.kind=lamb"],
    "modernbert, StableAdamW, batches that grow": [
        "1: model.family=modernbert model.window=6 engine.precision=bf16 optimizer.kind=stable_adamw "
        "batch.global_batch=none batch.micro_batch=none batch.global_tokens=512 batch.micro_tokens=128 "
        "batch.ramp_from=128 batch.ramp_steps=4"
    ],
    "eurobert, clm": ["1: model.family=eurobert model.num_key_value_heads=2 objective.kind=clm schedule.kind=cosine"],
    "gte, layers computed again": ["1: model.family=gte masking.kind=whole_word engine.recompute=true"],
    "electra": ["2: model.family=electra model.embedding_size=16 model.generator_size=0.5"],
    "xlnet": ["1: model.family=xlnet masking.kind=ngram masking.prob=0.1667"],
    "a mixture, two phases": ['1: config=PHASES data.pairs=["{pairs}","{held_out}"] data.weights=[0.7,0.3]'],
    "modernbert from statistics": [
        "1: model.family=modernbert model.initial_embeddings=cooccurrence model.initial_attention=identity "
        "model.initial_head=identity"
    ],
    "resumed on other layouts": [
        "2: engine.zero_stage=3 engine.precision=bf16 run.stop_at=2",
        "1: engine.zero_stage=2 engine.precision=bf16 run.stop_at=4",
        "2: engine.zero_stage=1 engine.precision=bf16",
    ],
}
"""The starts of each run: the number of ranks, and what is set."""

PHASES = """
[[phases]]
steps = 3
masking = { prob = 0.4, final_prob = 0.2 }

[[phases]]
steps = 3
batch = { global_batch = 8, micro_batch = 4 }
"""


@pytest.fixture(scope="module")
def folders(pairs: Path, held_out: Path, byte_rows: Path, sop_pairs: list[Path]) -> dict[str, Path]:
    return {"pairs": pairs, "held_out": held_out, "byte_rows": byte_rows, "sop_pairs": sop_pairs[0]}


@pytest.fixture(scope="module")
def plain(run, pairs: Path) -> Iterator[Training]:
    with forked.server(**PLAIN_KERNELS) as address, patch.dict(os.environ, PLAIN_KERNELS | {forked.ADDRESS: address}):
        yield Training(run, pairs)


def numbers_of(run: Path) -> list[str]:
    """Return NUMBERS for each logged step; Python writes every bit of a float."""
    by_step: dict[int, dict] = {}
    for line in logged(run):
        by_step[line["step"]] = by_step.get(line["step"], {}) | line
    return [" ".join(str(line.get(name)) for name in NUMBERS) for line in by_step.values()]


def hashes_of(folder: Path) -> dict[str, str]:
    """Return the first half of the SHA-256 of each file that a program reads."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".safetensors", ".json", ".txt")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()[:32] for path in files}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_its_recorded_numbers_and_export(
    plain: Training, folders: dict[str, Path], name: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    phases = tmp_path / "phases.toml"
    phases.write_text(Path("tests/recipes/small_bert.toml").read_text() + PHASES)
    for start in RUNS[name]:
        ranks, words = start.split(": ")
        given = STEPS | dict(word.format(**folders).split("=") for word in words.replace("PHASES", str(phases)).split())
        done = plain.warm(int(ranks), out, **given)
        assert done.returncode == 0, done.stderr

    export(str(out), str(tmp_path / "hf"), None)
    found: dict[str, Any] = {"numbers": numbers_of(out), "export": hashes_of(tmp_path / "hf")}

    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if os.environ.get("RECORD"):
        RECORDED.write_text(json.dumps(recorded | {name: found}, indent=1, sort_keys=True) + "\n")
        return
    assert found == recorded[name]
