"""Folders that others made or that a disk has damaged: refused with exit code 3, by `verify` and by every reader."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.damaged_folders import (
    check_random_damage,
    hide_row,
    keep_40_rows,
    read_all,
    read_fields,
    refused_by_both,
    replace_rows,
    restate,
    set_column,
    set_item,
    set_value,
    write_fields,
)

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture(scope="session")
def masked(command, text: Path, vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs with two stored masks a row."""
    out = tmp_path_factory.mktemp("masked") / "pairs"
    flags = ("--text", text, "--vocab", vocab, "--output", out, "--objective", "sop", "--max_length", 32)
    assert command("pairs", *flags, "--static_masks", 2).returncode == 0
    return out


@pytest.fixture
def masked_copy(masked: Path, tmp_path: Path) -> Path:
    return shutil.copytree(masked, tmp_path / "pairs")


def lengthen(table: pa.Table) -> pa.Table:
    """Repeat the tokens of row 1 until it has more than any row may."""
    ids, starts = table["input_ids"].to_pylist(), table["word_starts"].to_pylist()
    ids[1], starts[1] = ids[1] * 12, starts[1] * 12
    return set_column(set_column(table, "input_ids", ids), "word_starts", starts)


BAD_ROWS: dict[str, tuple[Change, str]] = {
    "null-segment_b_start": (set_value("segment_b_start", 2, None), "row 2, has a null in segment_b_start"),
    "null-list-of-tokens-that-hides-values": (hide_row("input_ids", 2), "row 2, has a null in input_ids"),
    "null-token-inside-a-row": (set_item("input_ids", 2, 1, None), "row 2, has a null in input_ids"),
    "null-list-of-word-starts": (hide_row("word_starts", 2), "row 2, has a null in word_starts"),
    "null-word-start-inside-a-row": (set_item("word_starts", 2, 1, None), "row 2, has a null in word_starts"),
    "null-document": (set_value("document_a", 2, None), "row 2, has a null in document_a"),
    "row-longer-than-max_length": (lengthen, "row 1, has more tokens than max_length 32"),
    "labeled-row-without-a-second-segment": (
        lambda table: set_value("segment_b_start", 2, len(table["input_ids"][2]))(table),
        "row 2, has a pair_label but not two segments",
    ),
    "second-segment-within-the-special-tokens": (
        set_value("segment_b_start", 2, 1),
        "row 2, has a pair_label but not two segments",
    ),
    "no-label-among-labeled-rows": (set_value("pair_label", 2, None), "row 2, has no pair_label"),
    "id-beyond-the-vocabulary": (set_item("input_ids", 2, 1, 65535), "row 2, has an id of 160 or more"),
    "second-segment-outside": (set_value("segment_b_start", 2, 33), "row 2, has a segment_b_start outside of the row"),
    "unknown-label": (set_value("pair_label", 2, 2), "row 2, has a pair_label other than 0, 1 or null"),
    "word-starts-of-another-length": (set_value("word_starts", 2, [True]), "row 2, has word_starts of another length"),
    "no-tokens": (
        lambda table: set_value("word_starts", 2, [])(set_value("input_ids", 2, [])(table)),
        "row 2, has no tokens",
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_named_by_verify_and_the_trainer(command, copy: Path, name: str) -> None:
    change, told = BAD_ROWS[name]
    shard = replace_rows(copy, change)
    refused_by_both(command, copy, f"{shard}, {told}")


BAD_MASKS: dict[str, tuple[Change, str]] = {
    "null-list-of-masks": (set_value("mask_positions", 2, None), "row 2, has a null in mask_positions"),
    "null-mask": (set_item("mask_tokens", 2, 1, None), "row 2, has a null in mask_tokens"),
    "null-position": (set_item("mask_positions", 2, 1, [None]), "row 2, has a null in mask_positions"),
    "positions-that-fall": (
        lambda table: set_item("mask_tokens", 2, 1, [7, 7])(set_item("mask_positions", 2, 1, [5, 3])(table)),
        "row 2, has mask positions that do not rise",
    ),
    "one-mask-less": (
        lambda table: set_value("mask_tokens", 2, [[7]])(set_value("mask_positions", 2, [[3]])(table)),
        "row 2, has not 2 stored masks",
    ),
    "position-outside": (
        lambda table: set_item("mask_tokens", 2, 1, [7])(set_item("mask_positions", 2, 1, [900])(table)),
        "row 2, has a mask position outside of the row",
    ),
    "token-beyond-the-vocabulary": (
        lambda table: set_item("mask_tokens", 2, 1, [60_000])(set_item("mask_positions", 2, 1, [3])(table)),
        "row 2, has a mask token of 160 or more",
    ),
    "as-many-tokens-as-positions": (
        set_item("mask_tokens", 2, 1, [7] * 30),
        "row 2, has mask_tokens of another length than mask_positions",
    ),
}


@pytest.mark.parametrize("name", BAD_MASKS)
def test_bad_masks_are_named_by_verify_and_the_trainer(command, masked_copy: Path, name: str) -> None:
    change, told = BAD_MASKS[name]
    shard = replace_rows(masked_copy, change)
    refused_by_both(command, masked_copy, f"{shard}, {told}")


BAD_TEXT: dict[str, tuple[Change, str]] = {
    "null-document": (set_value("document", 2, None), "row 2, has a null in document"),
    "null-source": (set_value("source", 2, None), "row 2, has a null in source"),
    "null-sentences": (set_value("sentences", 2, None), "row 2, has a null in sentences"),
    "null-sentence": (set_item("sentences", 2, 0, None), "row 2, has a null in sentences"),
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_bad_text_is_named_by_verify_and_by_jobs(command, text_copy: Path, vocab: Path, tmp_path, name: str) -> None:
    change, told = BAD_TEXT[name]
    shard = replace_rows(text_copy, change)
    flags = ("--text", text_copy, "--vocab", vocab, "--output", tmp_path / "out", "--objective", "nsp")
    for words in (("verify", text_copy), ("pairs", *flags)):
        done = command(*words)
        assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
        assert f"{shard}, {told}" in done.stderr


def test_n_a_fingerprint_that_the_shards_do_not_have_is_refused(command, copy: Path) -> None:
    keep_40_rows(copy)
    refused_by_both(command, copy, "states fingerprint")


def test_n_rows_that_their_fingerprint_does_not_name_are_refused(command, copy: Path) -> None:
    """Every entry of the manifest agrees with every other; the rows alone are not those that it names."""
    shard = replace_rows(copy, lambda table: table.take(list(range(table.num_rows))[::-1]), honest=False)
    refused_by_both(command, copy, f"{shard} has rows with fingerprint")


def test_verify_compares_the_vocabulary(command, copy: Path, vocab: Path, tmp_path: Path) -> None:
    """In pairs with the fingerprint that they name, in a vocabulary with its own."""
    tokenizer = copy / "vocabulary" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"cat"', '"cut"'))
    refused_by_both(command, copy, "but the pairs are of")

    other = shutil.copytree(vocab, tmp_path / "vocab")
    fields = read_fields(other)
    fields["fingerprint"] = "0" * 32
    write_fields(other, fields)
    done = command("verify", other)
    assert done.returncode == 3 and "states fingerprint" in done.stderr, done.stderr


def test_good_folders_pass(command, pairs: Path, masked: Path, text: Path, vocab: Path) -> None:
    for folder in (pairs, masked, text, vocab):
        done = command("verify", folder)
        assert done.returncode == 0, done.stderr
    read_all(masked)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("resealed", [False, True], ids=["raw", "resealed"])
def test_random_damage_to_a_shard(command, copy: Path, resealed: bool, seed: int) -> None:
    """Found by its hash, or with a resealed hash by its content. Never a crash."""
    check_random_damage(command, copy, seed, resealed, read_all)


def test_restated_folders_are_good(command, copy: Path) -> None:
    """The edits of these tests alone are not what is refused."""
    replace_rows(copy, lambda table: table)
    fields = read_fields(copy)
    restate(fields)
    write_fields(copy, fields)
    assert command("verify", copy).returncode == 0
    read_all(copy)
