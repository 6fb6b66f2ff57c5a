"""`make gpu` in its dry run, with tiny models on a CPU, and what decides which items it measures."""

import json
import subprocess
import sys
import sysconfig
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import gpu_bundle, gpu_run
from benchmarks.gpu_bench import FAILED, Figures, measure, values_of
from benchmarks.gpu_cases import CASES, ITEMS, SIDES, TESTS, Bench, Item, changes, items_of, longest_of, write_case
from benchmarks.gpu_pairs import spread_lengths, write_pairs
from benchmarks.gpu_report import Results, read_figures
from benchmarks.gpu_rivals import Form, Inputs, cut, rows_of_steps, step_of
from schemas.manifest import read_manifest
from schemas.masking import Masking
from trainer.config.load import load_recipe
from trainer.data.folder import PairFolder
from trainer.data.order import build_sources
from trainer.data.share import RankShare
from trainer.data.stream import MaskingSchedule, Stream
from trainer.models.batch import IGNORE_INDEX, PackedBatch
from trainer.models.families import encoder_shape


@pytest.mark.thorough
def test_the_dry_run_tests_and_measures_every_side_and_continues(tmp_path: Path) -> None:
    words = [sys.executable, "benchmarks/gpu_run.py", "--dry", "--output", str(tmp_path)]
    words += ["--continue", str(tmp_path / "gpu.json"), "--label", "one"]
    done = subprocess.run(words, capture_output=True, text=True)
    logs = "\n".join(path.read_text()[-3000:] for path in sorted(tmp_path.glob("*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs

    figures = read_figures(tmp_path / "gpu.json")
    assert [one.outcome for one in figures] == ["done"] * len(figures)
    measured = [one for one in figures if one.recipe != TESTS]
    assert {one.recipe for one in figures if one.recipe == TESTS and "passed" in one.note}
    assert [one.side for one in measured] == list(SIDES)
    assert all(one.tokens_per_second and one.gigabytes for one in measured)
    assert len({one.step_tokens for one in measured}) == 1, "the same rows in each step"
    assert (tmp_path / "gpu.md").read_text().count("| bert_large | 128 |") == len(SIDES)
    profile = json.loads((tmp_path / "profile_bert_large_128.json").read_text())
    assert profile["steps"] == 3 and profile["host_ms"] > 0

    again = subprocess.run(words, capture_output=True, text=True)
    assert again.returncode == 0 and again.stdout == "", "nothing is measured twice"
    assert read_figures(tmp_path / "gpu.json") == figures


def bench_in(folder: Path, seconds: float = 600, label: str = "one", dry: bool = False) -> Bench:
    return Bench(folder, folder, time.monotonic() + seconds, dry, label)


def test_figures_continue_for_the_same_code_only(tmp_path: Path) -> None:
    """Those of another code stay in the tables. What failed, or found no time, is measured again."""
    first = Results(bench_in(tmp_path), None)
    done, failed, left_out = (Item("bert_base", rows, "ours") for rows in ("128", "512", "packed"))
    first.add(Figures("bert_base", "128", "ours", tokens_per_second=5.0))
    first.add(Figures("bert_base", "512", "ours", outcome=FAILED))
    first.add(measure(bench_in(tmp_path, seconds=0), left_out, limit=150))

    again = Results(bench_in(tmp_path), tmp_path / "gpu.json")
    assert [again.holds(item) for item in (done, failed, left_out)] == [True, False, False]
    assert not again.holds(Item("bert_base", "128", "ours", gpus=2))

    other = Results(bench_in(tmp_path, label="two"), tmp_path / "gpu.json")
    assert not other.holds(done)
    other.add(Figures("bert_base", "128", "ours", tokens_per_second=7.0))
    assert [one.tokens_per_second for one in read_figures(tmp_path / "gpu.json")] == [5.0, None, None, 7.0]
    assert "code one" in (tmp_path / "gpu.md").read_text() and "code two" in (tmp_path / "gpu.md").read_text()

    (tmp_path / "gpu.json").write_text('{"tests": "passed"}')
    with pytest.raises(ValueError, match="of this version"):
        Results(bench_in(tmp_path), tmp_path / "gpu.json")


def test_an_item_ends_at_its_limit(tmp_path: Path) -> None:
    figures = measure(bench_in(tmp_path, dry=True), Item(TESTS, "test_model", "ours"), limit=0.5)
    assert (figures.outcome, figures.note) == (FAILED, "took more than 0 s; 0 had passed")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.recipe} {case.rows}")
def test_every_case_is_a_valid_recipe_for_its_rows(tmp_path: Path, case) -> None:
    item = Item(case.recipe, case.rows, "ours")
    bench = bench_in(tmp_path)
    values = values_of(bench, item, tmp_path / "pairs", tmp_path / "run")
    recipe = load_recipe(case.recipe, [*changes(bench), *(f"{key}={value}" for key, value in values.items())])
    assert recipe.run.max_steps == bench.steps and recipe.run.max_hours is None and not recipe.phases
    assert encoder_shape(recipe.model, 30_000).max_position_embeddings >= case.high

    if case.low == case.high:
        assert recipe.batch.global_tokens is None
        assert recipe.batch.global_batch * case.high == 65_536, "tokens of a step"
    else:
        assert (recipe.batch.global_batch, recipe.batch.global_tokens) == (None, 64_000)


def test_long_rows_have_exactly_their_length(tmp_path: Path) -> None:
    item = Item("modernbert_base", "8192", "ours")
    assert longest_of(bench_in(tmp_path), item.case) == 8192
    manifest = read_manifest(str(write_case(bench_in(tmp_path), item)), "pairs")
    lengths = {length: rows for length, rows in enumerate(manifest.statistics["lengths"]) if rows}
    assert list(lengths) == [8192] and lengths[8192] >= 8 * 36


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
    rows: list[tuple[int, ...]] = []
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


def test_items_are_chosen_by_recipe_and_by_name(capsys) -> None:
    def names(only: list[str] | None, gpus: list[int], dry: bool = False) -> list[tuple[str, str, int]]:
        return [(item.name, item.side, item.gpus) for item in items_of(only, gpus, dry)]

    assert names(["albert_base 512"], []) == [("albert_base 512", side, 1) for side in ("ours", "plain")]
    assert [side for _, side, _ in names(["bert_base"], [])] == ["ours", "plain"] * 3 + ["deepspeed"] * 3
    assert len(names(None, [])) == len(ITEMS) == len({*ITEMS})
    assert names(None, [2, 4])[:4] == [
        ("bert_large 128", "ours", 1),
        ("bert_large 128", "plain", 1),
        ("bert_large 128", "ours", 2),
        ("bert_large 128", "ours", 4),
    ]
    assert {name for name, _, _ in names(None, [], dry=True)} == {
        "bert_large 128",
        "tests test_attention",
        "tests test_model",
        "tests test_training",
        "tests test_finetune",
    }

    with pytest.raises(SystemExit):
        gpu_run.main(["--dry", "--only", "bert_bse"])
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
