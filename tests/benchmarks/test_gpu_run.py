"""`make gpu` in its dry run: the tests marked gpu, and every side of the benchmark, with tiny models on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu_bundle
from benchmarks.gpu_bench import SIDES
from benchmarks.gpu_pairs import spread_lengths, write_pairs
from trainer.data.dataset import PairFolder


def test_the_dry_run_tests_and_measures_every_side(tmp_path: Path) -> None:
    words = [sys.executable, "benchmarks/gpu_run.py", "--dry", "--output", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    logs = "\n".join(path.read_text()[-3000:] for path in sorted(tmp_path.glob("*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs

    report = json.loads((tmp_path / "gpu.json").read_text())
    assert report["dry"] and report["tests"].startswith("passed: ")
    assert [figures["side"] for figures in report["figures"]] == list(SIDES)
    assert all(figures["tokens_per_second"] > 0 and not figures["note"] for figures in report["figures"])
    assert (tmp_path / "gpu.md").read_text().count("| bert_large | 128 |") == len(SIDES)


@pytest.mark.parametrize("model", ["wordpiece", "bytebpe"])
def test_generated_pairs_are_read_as_any_others(tmp_path: Path, model) -> None:
    lengths_B = spread_lengths(8, 40, 5000)
    write_pairs(tmp_path / "one", lengths_B, 64, model, 300)
    write_pairs(tmp_path / "two", lengths_B, 64, model, 300)
    folder = PairFolder(str(tmp_path / "one"))
    assert folder.manifest == PairFolder(str(tmp_path / "two")).manifest, "the same arguments, the same rows"

    rows = folder.block(tuple(range(folder.manifest.num_shards))).rows
    assert np.array_equal(rows.lengths(), lengths_B)
    has_labels = set(rows.labels_B.tolist()) == {0, 1}
    assert has_labels == (model == "wordpiece")
    folder.close()


def test_a_bundle_holds_what_runs_need() -> None:
    """Not PyTorch, not what only Beam needs, and not the parts of pyarrow that nothing here imports."""
    names = {package.name.lower() for package in gpu_bundle.closure((*gpu_bundle.WANTED, *gpu_bundle.WANTED_FOR_RUNS))}
    assert {"deepspeed", "transformers", "pytest", "pyarrow", "pydantic_core", "einops", "hjson"} <= names
    assert not names & {"torch", "numpy", "apache-beam", "tensorboard"}
    assert gpu_bundle.is_left_out("pyarrow/libarrow_flight.so.2500") and gpu_bundle.is_left_out("pyarrow/_s3fs.so")
    assert not gpu_bundle.is_left_out("pyarrow/libarrow_python.so.2500")
