"""`make gpu` in its dry run: the tests marked gpu, and every side of the benchmark, with tiny models on a CPU."""

import json
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import gpu_bundle, gpu_run
from benchmarks.gpu_bench import SIDES
from benchmarks.gpu_cases import CASES, cases_of
from benchmarks.gpu_pairs import spread_lengths, write_pairs
from benchmarks.gpu_rows import Form, Inputs, cut, rows_of_steps, step_of
from schemas.masking import Masking
from trainer.data.folder import PairFolder
from trainer.data.order import build_sources
from trainer.data.share import RankShare
from trainer.data.stream import MaskingSchedule, Stream
from trainer.models.batch import IGNORE_INDEX, PackedBatch


@pytest.mark.thorough
def test_the_dry_run_tests_and_measures_every_side(tmp_path: Path) -> None:
    words = [sys.executable, "benchmarks/gpu_run.py", "--dry", "--output", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    logs = "\n".join(path.read_text()[-3000:] for path in sorted(tmp_path.glob("*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs

    report = json.loads((tmp_path / "gpu.json").read_text())
    assert report["dry"] and report["tests"].startswith("passed: ")
    assert [figures["side"] for figures in report["figures"]] == list(SIDES)
    assert all(figures["tokens_per_second"] > 0 and not figures["note"] for figures in report["figures"])
    assert len({figures["step_tokens"] for figures in report["figures"]}) == 1, "the same rows in each step"
    assert all(figures["gigabytes"] > 0 for figures in report["figures"])
    assert (tmp_path / "gpu.md").read_text().count("| bert_large | 128 |") == len(SIDES)


@pytest.mark.parametrize(("size", "by_tokens"), [(37, False), (900, True)])
def test_rivals_take_the_rows_of_the_trainer_s_steps(tmp_path: Path, size: int, by_tokens: bool) -> None:
    """Whatever is computed at once. Fillers add neither tokens nor anything to predict."""
    write_pairs(tmp_path / "pairs", spread_lengths(8, 40, 9000), 64, "wordpiece", 300)
    folder = PairFolder(str(tmp_path / "pairs"))
    steps = rows_of_steps(folder, size, by_tokens, seed=5, steps=4)
    count, room = cut(steps, most_rows=12)
    form = Form(room, 64, folder.vocabulary, "bert")
    masking = MaskingSchedule(Masking("token", 0.15))
    sources = build_sources([folder], None, 5, by_tokens)
    stream = Stream(sources, RankShare(rank=0, world_size=1, micro_batches=1, size=size), masking, 5)

    for number, rows in enumerate(steps):
        step = step_of(rows, count, form)
        (batch,) = stream.batch(number)
        assert (step.rows, step.tokens) == (batch.paired, batch.tokens)
        assert len(step.micro_batches) == count and room <= 12
        assert sorted(rows_of_inputs(step.micro_batches)) == sorted(rows_of_batch(batch))
    stream.close()


def rows_of_inputs(micro_batches: list[Inputs]) -> list[tuple[int, ...]]:
    """The tokens of each row, and its label, of batches of transformers. Fillers are left out."""
    rows = []
    for batch in micro_batches:
        ids = torch.where(batch["labels"] == IGNORE_INDEX, batch["input_ids"], batch["labels"])
        lengths = batch["attention_mask"].sum(dim=1).tolist()
        for row, length, label in zip(ids.tolist(), lengths, batch["next_sentence_label"].tolist(), strict=True):
            if length > 1:
                rows.append((label, *row[:length]))
    return rows


def rows_of_batch(batch: PackedBatch) -> list[tuple[int, ...]]:
    """The same of a batch of the trainer."""
    ids_T = batch.ids_T.clone()
    ids_T[batch.masked_positions_K] = batch.labels_K
    rows = ids_T.tensor_split(batch.sequence_starts_S[1:])
    return [(label, *row.tolist()) for label, row in zip(batch.pair_labels_S.tolist(), rows, strict=True)]


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
    assert gpu_bundle.is_left_out("pyarrow/libarrow_python.so")
    assert gpu_bundle.is_left_out("pyarrow/libarrow_python.so.2500.0.1")
    assert not gpu_bundle.is_left_out("pyarrow/libarrow_python.so.2500")


def test_cases_are_chosen_by_recipe_and_by_name(capsys) -> None:
    assert [case.rows for case in cases_of(["bert_base"])] == ["128", "512", "packed, mean 254"]
    assert [(case.recipe, case.rows) for case in cases_of(["albert_base 512"])] == [("albert_base", "512")]
    assert len(cases_of(None)) == len(CASES)

    with pytest.raises(SystemExit):
        gpu_run.main(["--dry", "--no_tests", "--only", "bert_bse"])
    assert "--only: no case is called 'bert_bse'" in capsys.readouterr().err


IMPORTED_BY_RUNS = """
import sys
sys.path[:0] = sys.argv[1:]
import pytest, pytest_timeout
from transformers import AutoConfig, AutoModelForPreTraining
sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}
AutoModelForPreTraining.from_config(AutoConfig.for_model("bert", **sizes), attn_implementation="sdpa")
from clozeline.installation import find_clash
assert find_clash() is None, find_clash()
import trainer.cli, trainer.train
import benchmarks.gpu_bench, benchmarks.gpu_report, benchmarks.gpu_rivals
"""


@pytest.mark.thorough
def test_all_that_runs_import_is_in_a_bundle_or_in_an_image_of_pytorch(tmp_path: Path) -> None:
    """Without this environment's packages: only those of the bundle, torch, numpy and what these two require."""
    bundle = tmp_path / "bundle"
    packed = gpu_bundle.pack(bundle, sysconfig.get_python_version())
    image = tmp_path / "image"
    link_packages(image, ("torch", "numpy", "setuptools"), {gpu_bundle.normalized(package.name) for package in packed})

    words = [sys.executable, "-I", "-S", "-c", IMPORTED_BY_RUNS, str(bundle), str(bundle / "site"), str(image)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.splitlines()[-1]


def link_packages(folder: Path, names: tuple[str, ...], left_out: set[str]) -> None:
    """Link installed packages and what they require into a folder, without those that are left out."""
    folder.mkdir()
    pending = list(names)
    seen = set(left_out)
    while pending:
        name = gpu_bundle.normalized(pending.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform
        pending += gpu_bundle.required_by(package)

        parts = {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}
        for part in parts:
            (folder / part).symlink_to(str(package.locate_file(part)))
