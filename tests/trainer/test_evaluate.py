"""Held-out figures: every row once by each kind in use, the same at any number of ranks, and training undisturbed."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from schemas.errors import ClozelineError
from schemas.manifest import read_manifest
from schemas.masking import KINDS, Masking, RowsToMask, draw_masks
from schemas.randomness import key, numbers
from tests.trainer.conftest import TIMED, logged, saved
from tests.trainer.distributed.step_waits import copied_values
from tests.trainer.distributed.waits import counted_waits
from tests.trainer.one_rank import filled_engine, group_of_one
from trainer.checkpoint.format import best_step, checkpoint_path, read_evaluation, steps_saved
from trainer.config.load import load_recipe
from trainer.config.sections import HELD_OUT_PROB
from trainer.data.batches import pack
from trainer.data.folder import PairFolder, open_folders
from trainer.data.share import RankShare
from trainer.evaluate import EVALUATION_SEED, Evaluation, batch_bounds, open_evaluation
from trainer.metrics.log import is_evaluation
from trainer.models.batch import PackedBatch
from trainer.models.starting_weights import build_model

TINY = "tests/recipes/small_bert.toml"


@contextmanager
def evaluating(pairs: Path, held_out: Path, *changes: str, ranks: int = 1, rank: int = 0) -> Iterator[Evaluation]:
    recipe = load_recipe(
        TINY, [f"data.pairs={pairs}", f"evaluation.pairs={held_out}", "evaluation.every=450", *changes]
    )
    evaluation = open_evaluation(recipe, open_folders(recipe), RankShare(rank, ranks, 2, recipe.batch.size))
    assert evaluation is not None
    yield evaluation
    evaluation.close()


def rows_of(batch: PackedBatch) -> list[bytes]:
    """Each row as its tokens, masked places and labels."""
    ends = [*batch.sequence_starts_S.tolist()[1:], len(batch.ids_T)]
    found = []
    for begin, end, label in zip(batch.sequence_starts_S.tolist(), ends, batch.pair_labels_S.tolist(), strict=True):
        mine = (batch.masked_positions_K >= begin) & (batch.masked_positions_K < end)
        places = (batch.masked_positions_K[mine] - begin).tolist()
        found.append(repr((batch.ids_T[begin:end].tolist(), places, batch.labels_K[mine].tolist(), label)).encode())
    return found


@pytest.mark.parametrize("size", [1, 7, 64, 100, 5000])
def test_batches_hold_every_place_once_and_are_never_small(size: int) -> None:
    for places in (1, 63, 64, 65, 127, 1000):
        bounds = batch_bounds(places, size)
        assert [bounds[0][0], bounds[-1][1]] == [0, places]
        assert all(a[1] == b[0] for a, b in pairwise(bounds))
        assert all(min(size, places) <= last - first < 2 * size or len(bounds) == 1 for first, last in bounds)


BY_TOKENS = ("batch.global_batch=none", "batch.micro_batch=none", "batch.global_tokens=600", "batch.micro_tokens=160")


@pytest.mark.parametrize("cut", [(), BY_TOKENS], ids=["rows", "tokens"])
def test_every_row_is_met_once_by_each_kind_at_any_number_of_ranks(pairs, held_out, cut) -> None:
    met: list[dict[str, Counter[bytes]]] = []
    for ranks in (1, 2, 3):
        found: dict[str, Counter[bytes]] = {kind: Counter() for kind in KINDS}
        for rank in range(ranks):
            changes = ("evaluation.all_kinds=true", *cut)
            with evaluating(pairs, held_out, *changes, ranks=ranks, rank=rank) as evaluation:
                for kind, batches in evaluation.batches():
                    found[kind].update(row for batch in batches for row in rows_of(batch))
        met.append(found)
    assert met[0] == met[1] == met[2]
    folder = PairFolder(str(held_out))
    for kind in KINDS:
        assert met[0][kind].total() == folder.manifest.totals["rows"]
    assert len({frozenset(met[0][kind]) for kind in KINDS}) == len(KINDS)
    folder.close()


def test_a_number_of_batches_is_that_part_of_the_rows(pairs, held_out) -> None:
    with evaluating(pairs, held_out, "evaluation.batches=2") as evaluation:
        found = list(evaluation.batches())
    assert {kind for kind, _ in found} == {"token"}, "only the run's own kind, unless evaluation.all_kinds is set"
    rows = [row for _, batches in found for batch in batches for row in rows_of(batch)]
    assert len(rows) == 2 * 32


def test_the_host_reads_nothing_before_the_end_of_an_evaluation(pairs, held_out, monkeypatch) -> None:
    """On a GPU it would wait for the device at each batch. CPU attention reads lengths, so it is replaced."""
    monkeypatch.setattr("trainer.models.encoder.attend", copied_values)
    recipe = load_recipe(TINY, ["engine.compile=false"])
    with evaluating(pairs, held_out, "evaluation.batches=5") as evaluation, group_of_one():
        vocabulary_size = PairFolder(str(held_out)).vocabulary.size
        engine = filled_engine(build_model(recipe.model, vocabulary_size, 0), recipe, RankShare(0, 1, 2, 32))
        asked: list[None] = []
        with counted_waits() as waits:
            evaluation.measure(engine, lambda: bool(asked.append(None)))
        engine.destroy()
    assert len(asked) == 5, "before each batch"
    assert waits.reads == {"tolist": 1} and not waits.synchronizations, "the sums of all batches"


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        (["evaluation.pairs={pairs}"], 2, "holds the rows of data.pairs"),
        (["evaluation.pairs=/none"], 3, "/none holds no finished pairs"),
        (["evaluation.pairs={other}"], 3, "Rebuild one with the other's"),
        (["batch.micro_batch=1", "batch.global_batch=4000"], 3, "fewer than the 4000 micro-batches of a step"),
        (["evaluation.every=7"], 2, r"evaluation\.every 7 and checkpoint\.every 450 seldom meet"),
    ],
    ids=["trained on", "missing", "vocabulary", "few", "every"],
)
def test_held_out_pairs_that_do_not_fit_are_refused(pairs, held_out, byte_rows, changes, code, told) -> None:
    with pytest.raises(ClozelineError, match=told) as caught:
        changes = [f"evaluation.pairs={held_out}", "evaluation.every=450", *changes]
        recipe = load_recipe(
            TINY, [f"data.pairs={pairs}", *(change.format(pairs=pairs, other=byte_rows) for change in changes)]
        )
        micro_batches = recipe.batch.size // (recipe.batch.micro_batch or 1)
        open_evaluation(recipe, open_folders(recipe), RankShare(0, 1, micro_batches, recipe.batch.size))
    assert caught.value.exit_code == code


def test_held_out_pairs_of_the_same_text_cause_a_warning(pairs, held_out, capsys) -> None:
    """They have other rows, but of documents that the run trains on."""
    recipe = load_recipe(TINY, [f"data.pairs={pairs}", f"evaluation.pairs={held_out}", "evaluation.every=450"])
    open_evaluation(recipe, open_folders(recipe), RankShare(0, 1, 2, recipe.batch.size))
    told = capsys.readouterr().out
    assert f"evaluation.pairs {held_out} and data.pairs {pairs} were made from the same text" in told


def trained(lines: list[dict]) -> list[dict]:
    """What does not depend on the clock."""
    return [{name: v for name, v in line.items() if name not in TIMED and "eval_" not in name} for line in lines]


def expected_figures(recipe_path: Path, step: int, held_out: Path) -> dict[str, NDArray[np.float64]]:
    """[loss, accuracy] of a checkpoint from its weights, a whole shard at a time on one process."""
    recipe = load_recipe(str(recipe_path), [])
    folder = PairFolder(str(held_out))
    model = build_model(recipe.model, folder.vocabulary.size, 0).eval()
    model.load_state_dict(saved(checkpoint_path(recipe.run.output, step)))
    found: dict[str, NDArray[np.float64]] = {}
    for kind in KINDS:
        sums_4 = np.zeros(4)
        masked = 0
        for number, shard in enumerate(folder.manifest.shards):
            rows = folder.block((number,)).rows
            keys_B = numbers(np.uint64(key(EVALUATION_SEED, "mask", 0, shard.fingerprint)), np.arange(shard.rows))
            masking = Masking(kind, HELD_OUT_PROB)
            to_mask = RowsToMask(rows.ids_T, rows.offsets_B1, rows.word_starts_T, keys_B)
            masks = draw_masks(to_mask, masking, folder.vocabulary)
            with torch.no_grad():
                sums_4 += [float(x) for x in model(pack(rows, masks))[:4]]
            masked += len(masks.positions_K)
        found[kind] = sums_4[:2] / masked
        if kind == recipe.masking.kind:
            found["pair"] = sums_4[2:] / folder.manifest.totals["rows"]
    folder.close()
    return found


def test_a_run_with_evaluation(training, held_out, tmp_path) -> None:
    """By LAMB on two ranks, stopped and resumed: trains as one without, with figures that the weights alone decide."""
    base = {
        "optimizer__kind": "lamb",
        "optimizer__lr": 0.02,
        "schedule__kind": "wsd",
        "schedule__decay_steps": 4,
        "run__max_steps": 8,
        "run__log_every": 4,
        "checkpoint__every": 2,
        "checkpoint__keep": 1,
        "masking__kind": "span",
    }
    held = {
        "evaluation__pairs": held_out,
        "evaluation__every": 4,
        "evaluation__batches": 1000,
        "evaluation__all_kinds": "true",
    }
    for name, changes in (("plain", {}), ("held", held | {"run__stop_at": 6}), ("held", held)):
        done = training.trained(2, tmp_path / name, **base, **changes)
    assert "Resuming from" in done.stdout and "held out: mlm" in done.stdout
    held_lines = logged(tmp_path / "held")
    assert [line["step"] for line in held_lines] == [1, 4, 4, 8, 8]
    lines = {line["step"]: line for line in held_lines if is_evaluation(line)}
    assert list(lines) == [4, 8]
    assert trained([line for line in held_lines if not is_evaluation(line)]) == trained(logged(tmp_path / "plain"))
    for file in checkpoint_path(str(tmp_path / "plain"), 8).glob("*.safetensors"):
        assert file.read_bytes() == (checkpoint_path(str(tmp_path / "held"), 8) / file.name).read_bytes()
    run_folder = str(tmp_path / "held")
    by_loss = min((line["eval_mlm_loss_masked"], step) for step, line in lines.items())
    assert best_step(run_folder) == by_loss[1]
    assert steps_saved(run_folder) == sorted({by_loss[1], 8})
    assert "Resumed after step 6:" in (tmp_path / "held" / "report.html").read_text()
    line, expected = lines[8], expected_figures(tmp_path / "held" / "recipe.toml", 8, held_out)
    for kind in KINDS:
        assert [line[f"eval_{kind}_mlm_loss"], line[f"eval_{kind}_mlm_accuracy"]] == pytest.approx(
            expected[kind], rel=1e-5
        )
    assert [line["eval_pair_loss"], line["eval_pair_accuracy"]] == pytest.approx(expected["pair"], rel=1e-5)
    assert line["eval_mlm_loss"] == line["eval_span_mlm_loss"]
    assert line["eval_perplexity"] == pytest.approx(math.exp(line["eval_mlm_loss"]))


def test_a_checkpoint_that_is_still_being_written_gets_its_evaluation_later(training, held_out, tmp_path) -> None:
    """Step 4 is written only once step 7 computes, after the evaluation of step 6."""
    changes = {"evaluation__pairs": held_out, "evaluation__every": 2, "checkpoint__every": 4, "checkpoint__keep": 9}
    training.trained(1, tmp_path, "hold:0:1:73", **changes)
    losses = {line["step"]: line["eval_mlm_loss"] for line in logged(tmp_path) if is_evaluation(line)}
    assert list(losses) == [2, 4, 6, 8, 10, 12]
    for step in (4, 8, 12):
        found = read_evaluation(str(checkpoint_path(str(tmp_path), step)))
        assert found["eval_mlm_loss"] == losses[step]
        assert found["pairs"] == read_manifest(str(held_out), "pairs").fingerprint


def test_an_evaluation_whose_line_is_lost_is_made_again(training, held_out, tmp_path) -> None:
    """As on a machine that was killed after it, and gets the metrics of the last save from the run's URL."""
    changes = {"evaluation__pairs": held_out, "evaluation__every": 4}
    training.trained(1, tmp_path / "straight", **changes)
    out = tmp_path / "run"
    training.trained(1, out, **changes, run__stop_at=8)
    file = out / "metrics.jsonl"
    *kept, last = file.read_text().splitlines(keepends=True)
    assert is_evaluation(json.loads(last))
    file.write_text("".join(kept))
    training.trained(1, out, **changes)
    assert training.losses(out) == training.losses(tmp_path / "straight")
