"""Statistics that others made or that a disk has damaged: refused by `verify` and by the trainer's reader."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from schemas.statistics import UNIGRAMS_FILE, read_statistics
from tests.damaged_folders import (
    check_random_damage,
    read_fields,
    refused_by_both,
    replace_rows,
    restate,
    set_value,
    write_fields,
)

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture(scope="module")
def statistics(command, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counted") / "statistics"
    assert command("statistics", "--pairs", pairs, "--output", folder).returncode == 0
    return folder


@pytest.fixture
def counted(statistics: Path, tmp_path: Path) -> Path:
    return shutil.copytree(statistics, tmp_path / "statistics")


def read_all(folder: Path) -> None:
    """Read a folder of statistics as the trainer does."""
    list(read_statistics(str(folder)).cooccurrences())


def refused(command, folder: Path, told: str) -> None:
    refused_by_both(command, folder, told, read_all)


def number_of(folder: Path, is_unigrams: bool) -> int:
    """Return the place of a file in the manifest's list."""
    paths = [entry["path"] for entry in read_fields(folder)["shards"]]
    return next(number for number, path in enumerate(paths) if (path == UNIGRAMS_FILE) == is_unigrams)


def reverse(table: pa.Table) -> pa.Table:
    return table.take(list(range(table.num_rows))[::-1])


def swap_tokens(table: pa.Table) -> pa.Table:
    columns = [table["second"], table["first"], table["weight"]]
    return pa.table(columns, schema=table.schema)


BAD_COOCCURRENCES: dict[str, tuple[Change, str]] = {
    "id-beyond-the-vocabulary": (set_value("second", 2, 160), "row 2, has a token id of 160 or more"),
    "largest-id": (set_value("first", 1, 2**32 - 1), "row 1, has a token id of 160 or more"),
    "first-above-second": (swap_tokens, "has a first token above the second"),
    "no-weight": (set_value("weight", 3, 0), "row 3, has a weight of 0 or less"),
    "negative-weight": (set_value("weight", 3, -5), "row 3, has a weight of 0 or less"),
    "pairs-that-fall": (reverse, "row 1, has a pair of tokens that is not after the one before"),
    "a-pair-twice": (
        lambda table: table.take([0, 0, *range(1, table.num_rows)]),
        "row 1, has a pair of tokens that is not after the one before",
    ),
    "null": (set_value("weight", 2, None), "row 2, has a null in weight"),
}


@pytest.mark.parametrize("name", BAD_COOCCURRENCES)
def test_bad_cooccurrences_are_named(command, counted: Path, name: str) -> None:
    change, told = BAD_COOCCURRENCES[name]
    path = replace_rows(counted, change, number=number_of(counted, is_unigrams=False))
    refused(command, counted, told)
    refused(command, counted, path)


BAD_UNIGRAMS: dict[str, tuple[Change, str]] = {
    "rows-of-half-the-vocabulary": (
        lambda table: table.slice(0, 80),
        "has 80 rows, but options.vocabulary_size is 160: one row for each token was expected. Rebuild",
    ),
    "no-rows": (lambda table: table.slice(0, 0), "has 0 rows, but options.vocabulary_size is 160"),
    "negative-count": (set_value("count", 9, -1), "row 9, has a negative count"),
    "negative-context-weight": (set_value("context_weight", 9, -1), "row 9, has a negative context_weight"),
}


@pytest.mark.parametrize("name", BAD_UNIGRAMS)
def test_bad_unigrams_are_named(command, counted: Path, name: str) -> None:
    change, told = BAD_UNIGRAMS[name]
    replace_rows(counted, change, number=number_of(counted, is_unigrams=True))
    refused(command, counted, UNIGRAMS_FILE)
    refused(command, counted, told)


def test_a_manifest_without_unigrams_is_refused(command, counted: Path) -> None:
    fields = read_fields(counted)
    del fields["shards"][number_of(counted, is_unigrams=True)]
    restate(fields)
    write_fields(counted, fields)
    refused(
        command, counted, "manifest.json lists no unigrams.arrow, which has the counts of all tokens. Copy the folder"
    )


def test_a_number_of_rows_that_a_file_does_not_have_is_refused(command, counted: Path) -> None:
    fields = read_fields(counted)
    fields["shards"][0]["rows"] += 1
    write_fields(counted, fields)
    refused(command, counted, "rows, but its manifest says")


def test_rows_that_their_fingerprint_does_not_name_are_refused(command, counted: Path) -> None:
    replace_rows(counted, set_value("weight", 3, 12345), honest=False, number=number_of(counted, is_unigrams=False))
    refused(command, counted, "has rows with fingerprint")


def test_ids_beyond_the_vocabulary_can_be_inspected(command, counted: Path) -> None:
    """While the pairs are still there, and so the tokens."""
    path = replace_rows(counted, set_value("second", 2, 4000), number=number_of(counted, is_unigrams=False))
    done = command("inspect", counted / path, "--rows", 100_000)
    assert done.returncode == 0 and "token 4000\n" in done.stdout, done.stderr


def test_restated_folders_are_good(command, counted: Path) -> None:
    """The edits of these tests alone are not what is refused."""
    for number in (0, 1):
        replace_rows(counted, lambda table: table, number=number)
    assert command("verify", counted).returncode == 0
    read_all(counted)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("resealed", [False, True], ids=["raw", "resealed"])
def test_random_damage_to_a_file(command, counted: Path, resealed: bool, number: int) -> None:
    """Found by its hash, or with a resealed hash by its content. Never a crash."""
    check_random_damage(command, counted, number, resealed, read_all)
