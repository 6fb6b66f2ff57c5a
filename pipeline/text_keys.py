"""Finds the key or the column that holds the text of a file of records, where it is not called `text`."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.readers.columnar import LONGEST_NAME, batches_of, open_arrow, open_parquet, text_columns, without_times
from pipeline.readers.csv_rows import DELIMITERS, NAMED_DELIMITER, TAB_SUFFIXES
from pipeline.readers.formats import plain_name
from pipeline.readers.inputs import FileRange
from pipeline.readers.json_values import objects_of
from pipeline.readers.jsonl import load_json
from pipeline.readers.members import ranges_in
from pipeline.readers.nested_keys import EACH, ELEMENTS, name_of, nested_texts, path_of, text_of, to_documents
from pipeline.readers.open import DECOMPRESSION_ERRORS, open_text
from pipeline.readers.ranges import HEAD_BYTES, open_head, open_range
from pipeline.readers.record import RecordOptions
from schemas.errors import DataError

USUAL = (
    *("text", "content", "body", "article", "document", "raw_content", "sentence", "abstract", "paragraphs"),
    "description",
)
"""Names of such keys, the most usual first. If none is there, it is the key with the most characters."""

OFTEN = ("passage", "review", "tweet")
"""Names of such keys if their texts are no labels, and not much shorter than the longest others."""
MUCH_SHORTER = 4  # times

NO_TEXT = {*("source", "url", "uri", "link", "href", "path", "file", "id", "ids", "uuid", "hash"), "date", "time"}
"""Last words of names that are no such keys, as in `dialogue_id` and `pageUrl`."""

LABELS = {"label", "labels", "class", "category", "type", "tag", "tags", "lang", "language", "split"}
"""Last words of names that are no such keys if what they hold has at most LABEL_CHARACTERS on average."""

LABEL_CHARACTERS = 30

_ENDS_SENTENCE = re.compile(r"\S\s+\S.*[.!?。！？]\W*$")
_URL = re.compile(r"(?:https?|ftp|s3|gs|file)://\S+$")
_LAST_WORD = re.compile(r"[a-z]+$|[A-Z][a-z]*$|[A-Z]+$")

ROWS = 50  # that are looked at
MEMBERS = 50  # of an archive that are read for tables

SMALL_SHARE = 0.05
"""Share of all bytes below which objects with texts in them are settings of programs, and not the text of a folder."""

MANY_FILES = 10  # of one object each, are a document each

# Texts under a dotted key of one object are at least so long on average, and so much of its characters. Names and
# messages of programs are shorter, and examples in a specification are a small part of it.
_PROSE_CHARACTERS = 50
_PROSE_SHARE = 1 / 8
_WORD = 20  # characters; a longer string without blanks is prose of a language without them


class _Found(NamedTuple):
    """The key of a file's text; "" if the file is one object without. length: characters that a row has under it.
    is_within: the file is one object, and the key leads into it. all: such lengths under all keys that most rows have.
    """

    key: str
    length: float
    is_within: bool
    all: dict[str, float]


_Names = dict[str, list[dict[str, float]]]
"""`_Found.all` of each file, by its key."""


class TextKeys(NamedTuple):
    """Keys of texts. read: as --text_key takes them. unread: other keys of files, by the characters of a record."""

    read: str
    unread: dict[str, int]


def text_keys(ranges: list[FileRange], most: int) -> TextKeys:
    """Return the keys of all texts: "text" first, then those of the longest texts, with `*` last.

    So the key of a file comes before those of its labels and titles that are the only text in others. A file whose
    records have an earlier key adds none. Of a few files of one object the elements of a list are documents, of many
    the files are. most: how many files are read.
    """
    lengths: dict[str, float] = defaultdict(float)
    names: _Names = defaultdict(list)
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    formats: set[str] = set()
    tables = [one for one in ranges if one.format in ROWS_OF or one.reader.members]
    opened = tables[:: -(-len(tables) // most) or 1]
    for file_range in opened:
        with suppress(DataError, csv.Error, pa.ArrowException, *DECOMPRESSION_ERRORS):  # `shard` says what is wrong
            for table in _tables_in(file_range):
                found = _found(table)
                formats.add(table.format)
                lengths[found.key] = max(lengths[found.key], found.length)
                files[found.key] += found.is_within
                sizes[found.key] += table.size
                names[found.key].append(found.all)

    some = sum(one.size for one in ranges) * len(opened) / max(1, len(tables))
    keys = [key for key in lengths if key and (not files[key] or sizes[key] >= SMALL_SHARE * some)]
    together = _together(keys, names) if formats <= {"json", "jsonl"} else []  # a table must have all columns
    keys.sort(key=lambda key: (key != "text", key not in together[:1], EACH in key, -lengths[key], key))
    needed: list[str] = []
    for key in keys:
        if any(found.keys().isdisjoint(needed) for found in names[key]):
            needed.append(key)
    read = {key: key.replace(ELEMENTS, "") if files[key] >= MANY_FILES or key in together else key for key in needed}
    read |= {key: ",".join([key, *map(read.pop, together[1:])]) for key in together[:1]}
    return TextKeys("|".join(dict.fromkeys(read.values())) or "text", _unread(needed, together, names))


def _together(keys: list[str], names: _Names) -> list[str]:
    """Return the one key of texts that many objects have, and those of lists in them, as of comments on an issue."""
    own = [key for key in keys if "." not in key and EACH not in key]
    if len(own) != 1 or len(names[own[0]]) < MANY_FILES:
        return []
    inner = [key for key in keys if ELEMENTS in key and EACH not in key and any(key in one for one in names[own[0]])]
    return own + inner if inner else []


def _unread(needed: list[str], together: list[str], names: _Names) -> dict[str, int]:
    """Return the keys that are not read in records with the first of these, by the characters of a record."""
    unread: dict[str, int] = {}
    for found in chain.from_iterable(names.values()):
        read = [name for name in needed if name in found][:1]
        longer = {name: round(length) for name, length in found.items() if read and length > LABEL_CHARACTERS}
        unread |= {name: length for name, length in longer.items() if name not in read + together}
    return unread


def _tables_in(file_range: FileRange) -> Iterator[FileRange]:
    """Yield a file, or the tables among the first members of an archive."""
    if file_range.reader.members is None:
        yield file_range
        return
    members = islice(ranges_in(file_range, RecordOptions("text", "file")), MEMBERS)
    yield from (one for one, problem in members if problem is None and one.format in ROWS_OF)


def text_key(file_range: FileRange) -> str:
    """Return the key of the text; "text" if the first rows have no strings."""
    return _found(file_range).key or "text"


def _found(file_range: FileRange) -> _Found:
    rows = list(islice(ROWS_OF[file_range.format](file_range), ROWS))
    nested: Counter[str] = Counter()
    is_one = file_range.format == "json" and len(rows) == 1  # such as package.json, with its description
    if file_range.format != "csv":
        nested = _nested_lengths(rows, is_one, has_maps=file_range.format in ("json", "jsonl"))
        rows = [{name: _as_text(name, value, is_one) for name, value in row.items()} for row in rows]
    if file_range.format in ("parquet", "arrow"):
        names = text_columns(_schema(file_range))
        nested = Counter({name: length for name, length in nested.items() if name in names})
    lengths = _lengths(rows, str) or _lengths(rows, bytes)  # as Spark and Impala write texts
    if not is_one and not nested and all(_last_word(name) in NO_TEXT | LABELS for name in lengths):
        lengths += _lengths([{name: _sentences(value) for name, value in row.items()} for row in rows], str)

    usual = [name for name in USUAL if lengths[name]]
    labels = {name for name in lengths if _last_word(name) in LABELS and lengths[name] <= LABEL_CHARACTERS * len(rows)}
    texts = [name for name, _ in lengths.most_common() if _last_word(name) not in NO_TEXT and name not in labels]
    most = [] if is_one else texts
    if is_one:
        usual = [name for name in usual if name != "description"]
    least = max(LABEL_CHARACTERS * len(rows), max((lengths[name] for name in most), default=0) / MUCH_SHORTER)
    usual = usual or [name for name in OFTEN if name in most and lengths[name] > least]
    longer = [name for name, length in nested.most_common(1) if length > sum(lengths[name] for name in most)]
    key = (usual or longer or most or ["" if is_one else "text"])[0]
    per_row = {name: max(lengths[name], nested[name]) / max(len(rows), 1) for name in (key, *texts, *nested)}
    filled = [name for name in texts if 2 * sum(bool(row.get(name)) for row in rows) >= len(rows)]
    per_row = {name: per_row[name] for name in (key, *filled, *nested)}
    return _Found(key, per_row[key], is_one and key in nested, per_row)


def _schema(file_range: FileRange) -> pa.Schema:
    with open_range(file_range.file) as opened:
        if file_range.format == "arrow":
            return open_arrow(opened, file_range.display_path).schema
        return open_parquet(opened, file_range.display_path).schema_arrow


def _nested_lengths(rows: list[dict[str, Any]], is_one: bool, has_maps: bool) -> Counter[str]:
    """Return how many characters of prose are under names that lead into others.

    is_one: the first list on the way is marked, and what settings may hold, too, is left out. has_maps: as in
    `nested_texts`.
    """
    texts: dict[str, list[str]] = {}
    characters = 0
    for name, strings in chain.from_iterable(nested_texts(row, is_one, has_maps).items() for row in rows):
        characters += sum(map(len, strings))
        if _last_word(name) not in NO_TEXT | LABELS:
            if is_one:
                path = path_of(name)
                first = to_documents(path)
                name = name_of(first + tuple(step for step in path[len(first) :] if step != ELEMENTS))
            texts.setdefault(name, []).extend(filter(_is_prose, strings))

    if not is_one:
        return Counter({name: sum(map(len, set(prose))) for name, prose in texts.items() if prose})
    lengths = {name: sum(map(len, prose)) for name, prose in texts.items() if prose}
    return Counter(
        {
            name: length
            for name, length in lengths.items()
            if len(texts[name]) > 1
            and length >= max(_PROSE_CHARACTERS * len(texts[name]), _PROSE_SHARE * characters)
            and _last_word(name) != "description"
        }
    )


def _is_prose(value: str) -> bool:
    return not _is_number_or_url(value) and (" " in value or (len(value) > _WORD and not value.isascii()))


def _last_word(name: str) -> str:
    found = _LAST_WORD.search(name)
    return found[0].lower() if found else ""


def _as_text(name: str, value: Any, is_one: bool) -> Any:
    """Return a list of texts as one if its name says that it is a text, and not words or tags.

    is_one: objects in a list are documents, and not paragraphs.
    """
    is_text = name in USUAL and not (is_one and isinstance(value, list) and all(isinstance(one, dict) for one in value))
    return (text_of(value) or value) if is_text else value


def _sentences(value: Any) -> str | None:
    """Return a list of sentences as a text, and no list of words or tags."""
    is_text = isinstance(value, list) and all(isinstance(part, str) and _is_prose(part) for part in value)
    return text_of(value) if is_text else None


def _lengths(rows: list[dict[str, Any]], kind: type) -> Counter[str]:
    """Return how many characters are under each key. What comes again, such as a license in each row, counts once."""
    texts: dict[str, set[str | bytes]] = defaultdict(set)
    for row in rows:
        for name, value in row.items():
            if isinstance(value, kind) and name and not _is_number_or_url(value):
                texts[name].add(value)
    return Counter({name: sum(map(len, values)) for name, values in texts.items()})


def _is_number_or_url(value: str | bytes) -> bool:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return _URL.match(value) is not None or not any(map(str.isalpha, value))


def head_lines(file_range: FileRange) -> list[str]:
    """Return the whole lines in the first HEAD_BYTES of a file."""
    head = open_head(file_range.file)
    with open_text(head, file_range.display_path, file_range.compression, file_range.encoding) as opened:
        data = opened.read(HEAD_BYTES)
    lines = data.decode("utf-8-sig", errors="replace").split("\n")  # as the readers do
    return lines[:-1] if len(lines) > 1 else lines


def _json_rows(file_range: FileRange) -> Iterable[dict[str, Any]]:
    for line in head_lines(file_range):
        try:
            row = load_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _json_values(file_range: FileRange) -> Iterable[dict[str, Any]]:
    with open_text(
        open_head(file_range.file), file_range.display_path, file_range.compression, file_range.encoding
    ) as opened:
        yield from objects_of(opened.read(HEAD_BYTES))


def _csv_rows(file_range: FileRange) -> Iterable[dict[str, Any]]:
    lines = head_lines(file_range)
    named = NAMED_DELIMITER.fullmatch(f"{lines[0]}\n") if lines else None
    if named is not None:
        return csv.DictReader(lines[1:], delimiter=named[1])
    header = lines[0] if lines else ""
    delimiter = "\t" if plain_name(file_range.path).endswith(TAB_SUFFIXES) else max(DELIMITERS, key=header.count)
    rows = csv.DictReader(lines, delimiter=delimiter)
    has_header = not any(len(name) > LONGEST_NAME or _ENDS_SENTENCE.search(name) for name in rows.fieldnames or ())
    return rows if has_header else []


def _parquet_rows(file_range: FileRange) -> Iterable[dict[str, Any]]:
    with open_range(file_range.file) as opened:
        for batch in open_parquet(opened, file_range.display_path).iter_batches(batch_size=ROWS):
            yield from without_times(batch).to_pylist()


def _arrow_rows(file_range: FileRange) -> Iterable[dict[str, Any]]:
    with open_range(file_range.file) as opened:
        columns = len(open_arrow(opened, file_range.display_path).schema)
        reader = open_arrow(opened, file_range.display_path, list(range(columns)))
        for batch in batches_of(reader):
            yield from without_times(batch.slice(0, ROWS)).to_pylist()


ROWS_OF: dict[str, Callable[[FileRange], Iterable[dict[str, Any]]]] = {
    "jsonl": _json_rows,
    "json": _json_values,
    "csv": _csv_rows,
    "parquet": _parquet_rows,
    "arrow": _arrow_rows,
}
"""The formats whose text is under a key, and what reads their first rows."""
