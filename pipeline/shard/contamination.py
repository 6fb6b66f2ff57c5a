"""--decontaminate: which documents share a run of words with evaluation sets, so that scores on these stay honest.

As for GPT-3 (Brown et al., arXiv:2005.14165, appendix C): a document is contaminated if it has any run of 13 words of
an evaluation set, without case and punctuation. Unlike there, the whole document is left out, however long it is. An
ideograph or kana is a word; scripts without spaces whose letters are none, such as Thai, have words as long as clauses.

Texts of evaluation sets with fewer words are not looked for, because ordinary sentences would match them by accident.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.near_duplicates.signatures import hash_words
from pipeline.readers.columnar import open_arrow, without_times
from pipeline.readers.csv_rows import DELIMITERS, TAB_SUFFIXES
from pipeline.readers.encodings import UTF8, wide_encoding
from pipeline.readers.formats import binary_kind, named_format, plain_name
from pipeline.readers.json_values import json_values
from pipeline.readers.jsonl import load_json
from pipeline.readers.open import compression_of, open_plain
from pipeline.readers.ranges import HEAD_BYTES
from pipeline.readers.record import MAX_UNDECODABLE_RATIO
from pipeline.shard.cleaning import clean
from schemas import storage
from schemas.errors import DataError
from schemas.randomness import key, mix, numbers

RUN_WORDS = 13

EVALUATION_SETS = "evaluation-sets.npz"
"""Name of the file in staging with the runs of words that workers look for."""

Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class EvaluationSets:
    """The runs of words of some files.

    hashes: (N,) uint64, ascending and distinct. files: (N,) uint16, for each the first file that has it, as an index
    into `names`. skipped: texts with fewer words than a run.
    """

    words: int
    names: list[str]
    hashes: Hashes
    files: NDArray[np.uint16]
    skipped: int = 0

    def file_with(self, text: str) -> str | None:
        """Return the name of a file that has a run of words of this text: the first one's. None if no file has any."""
        runs = run_hashes(text, self.words)
        places = np.searchsorted(self.hashes, runs)
        is_inside = places < len(self.hashes)
        places, runs = places[is_inside], runs[is_inside]
        found = self.files[places[self.hashes[places] == runs]]
        return self.names[found.min()] if len(found) else None

    def to_bytes(self) -> bytes:
        """Return all of it as an .npz file without a date, so that equal sets are equal bytes."""
        file = io.BytesIO()
        names = np.frombuffer(orjson.dumps(self.names), np.uint8)
        np.savez(file, words=self.words, names=names, hashes=self.hashes, files=self.files, skipped=self.skipped)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> EvaluationSets:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            names = orjson.loads(stored["names"].tobytes())
            return cls(int(stored["words"]), names, stored["hashes"], stored["files"], int(stored["skipped"]))


@lru_cache(maxsize=1)
def stored_sets(url: str) -> EvaluationSets:
    return EvaluationSets.from_bytes(storage.read(url))


def read_evaluation_sets(paths: list[str], words: int = RUN_WORDS) -> EvaluationSets:
    """Return the runs of words in some files.

    Raises UsageError for a file that does not exist, and DataError for one that cannot be read or has no such run.

    Every text of a file counts: each string of JSON lines, each cell of a table, each line of other files.
    """
    hashes: list[Hashes] = []
    skipped = 0
    for path in paths:
        runs = [run_hashes(clean(text, Counter()), words) for text in texts_of(path)]
        skipped += sum(len(of_text) == 0 for of_text in runs)
        hashes.append(np.unique(np.concatenate([np.zeros(0, np.uint64), *runs])))
        if len(hashes[-1]) == 0:
            raise DataError(
                f"--decontaminate {storage.printable(path)} has no text of {words} words or more, so nothing in the "
                "corpus could match it. Leave it out, or lower --decontaminate_words."
            )

    files = np.repeat(np.arange(len(paths), dtype=np.uint16), [len(of_file) for of_file in hashes])
    distinct, first = np.unique(np.concatenate(hashes), return_index=True)
    names = [storage.printable(path).rstrip("/").rpartition("/")[2] for path in paths]
    return EvaluationSets(words, names, distinct, files[first], skipped)


def run_hashes(text: str, words: int) -> Hashes:
    """Return a hash of each run of this many consecutive words of a clean text, ignoring case: none if it has fewer."""
    words_W, _ = hash_words(text.lower())
    last_start = len(words_W) - words + 1
    if last_start <= 0:
        return np.zeros(0, np.uint64)

    # Odd factors make the order of the words matter.
    sums = np.zeros(last_start, np.uint64)
    factors = numbers(np.uint64(key("runs of words")), np.arange(words)) | np.uint64(1)
    for place, factor in enumerate(factors):
        sums += words_W[place : place + last_start] * factor
    return mix(sums)


def texts_of(path: str) -> Iterator[str]:
    """Yield the texts of a file in any form that evaluation sets have: JSON, CSV, TSV, Parquet, Arrow or text."""
    shown = storage.printable(path)
    compression = compression_of(path)
    try:
        with open_plain(io.BytesIO(storage.read_named("--decontaminate", path)), shown, compression) as file:
            data = file.read()
            name = named_format(path)
            if name == "jsonl":
                yield from _strings(_values(_decoded(data, shown)))
            elif name == "parquet":
                yield from _strings(without_times(pq.read_table(io.BytesIO(data))).to_pylist())
            elif name == "arrow":
                table = open_arrow(io.BytesIO(data), shown).read_all()
                yield from _strings(without_times(table).to_pylist())
            else:
                lines = io.StringIO(_decoded(data, shown), newline="")
                yield from _strings(_rows(lines, path) if name == "csv" else lines)
    except (OSError, ValueError, EOFError, RecursionError, csv.Error, pa.ArrowException) as error:
        raise DataError(
            f"--decontaminate {shown} cannot be read: {str(error).rstrip('.')}. Give JSON lines, a table or text."
        ) from error


def _decoded(data: bytes, shown: str) -> str:
    """Return the text of a file. Raises DataError for another kind of file, which would match nothing."""
    head = data[:HEAD_BYTES]
    encoding = wide_encoding(head, UTF8)
    kind = binary_kind(head)
    if kind is not None and encoding is None:
        raise DataError(f"--decontaminate {shown} looks like {kind}. Give JSON lines, a table or text.")

    text = data.decode("utf-8-sig", errors="replace")
    damaged = text.count("\ufffd") - data.count("\ufffd".encode())
    if encoding is not None or damaged > MAX_UNDECODABLE_RATIO * len(data):
        raise DataError(f"--decontaminate {shown} is not UTF-8. Convert it first, for instance with iconv -t UTF-8.")
    return text


def _rows(lines: io.StringIO, path: str) -> Iterable[list[str]]:
    """Return the rows of CSV, whose delimiter is the one that its first line has most often, or of TSV."""
    first_line = lines.readline()
    lines.seek(0)
    csv.field_size_limit(sys.maxsize)
    delimiter = "\t" if plain_name(path).endswith(TAB_SUFFIXES) else max(DELIMITERS, key=first_line.count)
    return csv.reader(lines, delimiter=delimiter)


def _values(text: str) -> list[Any]:
    """Return the only value of a JSON file, such as SQuAD's, or all values of JSON lines and the like."""
    try:
        return [load_json(text)]
    except ValueError:
        data = text.encode()
        return [load_json((value or b"").decode()) for _, value, _ in json_values([data], len(data))]


def _strings(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _strings(value.values())
        elif isinstance(value, list):
            yield from _strings(value)
