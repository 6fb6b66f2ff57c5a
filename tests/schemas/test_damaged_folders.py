"""Folders that others made or that a disk has damaged: refused with exit code 3, by `verify` and by every reader."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from schemas import storage
from schemas.errors import ClozelineError, DataError
from schemas.manifest import read_manifest
from tests.damaged_folders import (
    Fields,
    hide_row,
    keep_40_rows,
    read_fields,
    replace_rows,
    restate,
    set_column,
    set_item,
    set_value,
    write_fields,
)
from trainer.config.load import load_recipe
from trainer.data.build import open_folders
from trainer.data.dataset import PairFolder

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def copy(pairs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pairs, tmp_path / "pairs")


@pytest.fixture
def text_copy(text: Path, tmp_path: Path) -> Path:
    return shutil.copytree(text, tmp_path / "text")


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


def read_all(folder: Path) -> None:
    """Read every block as the trainer does."""
    opened = PairFolder(str(folder))
    try:
        for number in range(len(opened.manifest.shards)):
            opened.block((number,))
    finally:
        opened.close()


def refused_by_both(command, folder: Path, told: str) -> None:
    """`verify` and the trainer's reader end with code 3 and say what is wrong."""
    done = command("verify", folder)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert told in done.stderr
    with pytest.raises(DataError, match=told.replace("[", r"\[")):
        read_all(folder)


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


HOSTILE_NAMES = [
    "../victim.arrow",
    "s/../../victim.arrow",
    "/tmp/victim.arrow",
    "..",
    "",
    ".",
    "a\\..\\victim.arrow",
    "file:///tmp/victim.arrow",
    "a::b.arrow",
    "two\nlines.arrow",
    "\ud800.arrow",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=repr)
def test_names_of_shards_are_plain(command, text_copy: Path, vocab: Path, tmp_path: Path, name: str) -> None:
    """No reader opens, and no job writes, a file that a manifest places outside of its folder."""
    fields = read_fields(text_copy)
    victim = tmp_path / "victim.arrow"
    victim.write_bytes((text_copy / fields["shards"][0]["path"]).read_bytes())
    fields["shards"][0]["path"] = name
    write_fields(text_copy, fields)
    before = storage.sha256(victim.read_bytes())

    out = tmp_path / "deep" / "out"
    making = ("--text", text_copy, "--output", out)
    for words in (
        ("verify", text_copy),
        ("inspect", text_copy),
        ("vocab", *making, "--model", "wordpiece", "--size", 160),
        ("pairs", *making, "--vocab", vocab, "--objective", "nsp"),
    ):
        done = command(*words)
        assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
        assert "shards.0.path" in done.stderr and "plain file name" in done.stderr
    assert storage.sha256(victim.read_bytes()) == before
    assert not out.exists()


def twice(fields: Fields) -> None:
    fields["shards"].append(fields["shards"][0])


def without(*keys: str) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        *path, last = keys
        for key in path:
            fields = fields[key]
        del fields[last]

    return change


def put(value: object, *keys: str | int) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        *path, last = keys
        inner: object = fields
        for key in path:
            inner = inner[key]  # type: ignore[index]
        inner[last] = value  # type: ignore[index]

    return change


BAD_MANIFESTS: dict[str, tuple[Callable[[Fields], None], str]] = {
    "a-shard-twice": (twice, "names pairs-00000-of-00003.arrow twice"),
    "no-max_length": (without("options", "max_length"), "options.max_length"),
    "max_length-in-words": (put("long", "options", "max_length"), "options.max_length"),
    "no-objective": (without("options", "objective"), "options.objective"),
    "unknown-objective": (put("chess", "options", "objective"), "options.objective"),
    "no-vocabulary": (without("options", "vocabulary"), "options.vocabulary"),
    "vocabulary-of-0-tokens": (put(0, "options", "vocabulary_size"), "options.vocabulary_size"),
    "no-total": (without("totals", "tokens"), "totals.tokens"),
    "another-total": (put(5, "totals", "rows"), "totals.rows"),
    "negative-rows": (put(-1, "shards", 0, "rows"), "shards.0.rows"),
    "huge-rows": (put(10**30, "shards", 0, "rows"), "shards.0.rows"),
    "hash-of-another-kind": (put("../x", "shards", 0, "sha256"), "shards.0.sha256"),
    "no-lengths": (without("statistics", "lengths"), "statistics.lengths"),
    "lengths-of-other-rows": (put([0, 0, 5], "statistics", "lengths"), "statistics.lengths"),
    "format-0": (put(0, "format_version"), "format_version"),
}


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_bad_manifests_are_named_by_verify_and_the_trainer(command, copy: Path, name: str) -> None:
    change, told = BAD_MANIFESTS[name]
    fields = read_fields(copy)
    change(fields)
    write_fields(copy, fields)
    refused_by_both(command, copy, told)


def test_a_deeply_nested_manifest_is_an_error(command, copy: Path) -> None:
    (copy / "manifest.json").write_text('{"a":' * 50_000)
    refused_by_both(command, copy, "manifest.json")


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


def damaged(data: bytes, draws: random.Random) -> bytes:
    """One bit flipped, the end cut off, or an aligned integer of 4 or 8 bytes overwritten."""
    changed = bytearray(data)
    place = draws.randrange(len(data))
    kind = draws.choice(["flip", "cut", "integer"])
    if kind == "flip":
        changed[place] ^= 1 << draws.randrange(8)
    elif kind == "cut":
        del changed[place:]
    else:
        width = draws.choice([4, 8])
        start = place // width * width
        value = draws.choice([0, -1, 1, 2 ** (8 * width - 1) - 1, -(2 ** (8 * width - 1)), draws.getrandbits(31)])
        changed[start : start + width] = value.to_bytes(width, "little", signed=True)
    return bytes(changed)


def outcome(action: Callable[[], object]) -> int:
    """The exit code of what a reader does; what is not an error of ours is one of the test's."""
    try:
        action()
        return 0
    except ClozelineError as error:
        return error.exit_code


TRIES = 60


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("resealed", [False, True], ids=["raw", "resealed"])
def test_random_damage_to_a_shard(command, copy: Path, resealed: bool, seed: int) -> None:
    """Found by its hash; with a resealed hash by Arrow, the ranges or the rows' fingerprint. Never a crash."""
    draws = random.Random(seed)
    fields = read_fields(copy)
    entry = fields["shards"][seed]
    whole = (copy / entry["path"]).read_bytes()

    for number in range(TRIES):
        data = damaged(whole, draws)
        (copy / entry["path"]).write_bytes(data)
        if resealed:
            entry.update(bytes=len(data), sha256=storage.sha256(data))
            write_fields(copy, fields)
        expected = {0} if data == whole else {3} if not resealed else {0, 3}
        code = outcome(lambda: read_all(copy))
        assert code in expected, number
        done = command("verify", copy)
        assert done.returncode == code and "Traceback" not in done.stderr, (number, done.stderr)


@pytest.mark.parametrize("seed", range(3))
def test_random_damage_to_a_manifest(command, copy: Path, seed: int) -> None:
    """Either it is refused, or what it decides about the rows is what it was."""
    draws = random.Random(seed)
    path = copy / "manifest.json"
    whole = path.read_bytes()
    good = read_manifest(str(copy), "pairs")
    recipe = load_recipe("trainer/recipes/tiny.toml", [f"data.pairs={copy}"])

    for number in range(TRIES):
        path.write_bytes(damaged(whole, draws))
        code = outcome(lambda: [folder.close() for folder in open_folders(recipe)])
        assert code in (0, 3), number
        if code == 0:
            found = read_manifest(str(copy), "pairs")
            assert (found.fingerprint, found.totals) == (good.fingerprint, good.totals), number
            assert outcome(lambda: read_all(copy)) in (0, 3), number
        done = command("verify", copy)
        assert done.returncode in (0, 3) and "Traceback" not in done.stderr, (number, done.stderr)


def wrong_type(value: object, draws: random.Random) -> object:
    """Another JSON value in the place of one."""
    values: list[object] = [None, True, -1, 2**70, 0.5, float("nan"), "", "x", "../x", [], [None], {}, {"a": 1}]
    return draws.choice([other for other in values if other != value])


def places_of(value: object, path: tuple = ()) -> list[tuple]:
    """The paths to everything inside a JSON value; of a long list its first items only."""
    found = [path] if path else []
    if isinstance(value, dict):
        for name, inner in value.items():
            found += places_of(inner, (*path, name))
    if isinstance(value, list):
        for i, inner in enumerate(value[:3]):
            found += places_of(inner, (*path, i))
    return found


def test_wrong_types_in_a_manifest(command, copy: Path) -> None:
    draws = random.Random(0)
    whole = (copy / "manifest.json").read_text()
    places = places_of(read_fields(copy))

    for place in draws.sample(places, min(TRIES, len(places))):
        fields = read_fields(copy)
        *path, last = place
        inner: object = fields
        for key in path:
            inner = inner[key]  # type: ignore[index]
        inner[last] = wrong_type(inner[last], draws)  # type: ignore[index]
        write_fields(copy, fields)
        assert outcome(lambda: read_all(copy)) in (0, 3), place
        for words in (("verify", copy), ("inspect", copy)):
            done = command(*words)
            assert done.returncode in (0, 3) and "Traceback" not in done.stderr, (place, done.stderr)
        (copy / "manifest.json").write_text(whole)


def test_restated_folders_are_good(command, copy: Path) -> None:
    """The edits of these tests alone are not what is refused."""
    replace_rows(copy, lambda table: table)
    fields = read_fields(copy)
    restate(fields)
    write_fields(copy, fields)
    assert command("verify", copy).returncode == 0
    read_all(copy)
