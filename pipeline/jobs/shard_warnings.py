"""Warnings of `shard` before it starts: about files and flags that do not do what the user may believe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

from pipeline.options import ShardJob
from pipeline.readers.encodings import is_line_safe
from pipeline.readers.formats import first_bytes
from pipeline.readers.inputs import FileRange, Split
from pipeline.readers.json_values import unknown_keys
from pipeline.readers.listing import InputFile
from pipeline.readers.table import READERS
from pipeline.shard.detection import AUTO, detect_language, is_installed
from pipeline.shard.languages import known_language
from schemas import storage
from schemas.errors import nearest_name
from schemas.terminal import one_line, tell_warning

LOOKED_AT = 16
"""Maximum files of a corpus whose beginnings are looked at for the keys of --text_key, and for the language."""

ENGLISH = "en"
MOST = 0.8  # of the bytes that were looked at
SURE = 0.65  # FineWeb's least confidence of a document's language
LEAST_BYTES = 2000
"""That are looked at, for a warning about their language: that of a shorter text may be a wrong one."""


def warn_of_empty_files(files: list[InputFile]) -> None:
    """Print a warning with the number and the first of empty files, unless all are."""
    empty = [file.path for file in files if file.size == 0]
    if not empty or len(empty) == len(files):
        return

    first = one_line(storage.printable(empty[0]))
    found = (
        f"{len(empty):,} of {len(files):,} input files {'is' if len(empty) == 1 else 'are'} empty, the first: {first}"
    )
    tell_warning(found)


def warn_of_flags_without_effect(job: ShardJob, splits: list[Split]) -> None:
    """Print a warning for each flag that has an effect on other formats than those of the input."""
    formats = {file_range.format for split in splits for file_range in split.ranges}
    if "auto" in formats:  # the workers detect them
        return

    defaults = {field.name: field.default for field in fields(ShardJob)}
    for name in dict.fromkeys(flag for reader in READERS.values() for flag in reader.flags):
        value = getattr(job, name)
        used_by = [known for known, reader in READERS.items() if name in reader.flags]
        if value != defaults[name] and formats.isdisjoint(used_by):
            what = " or ".join([*filter(None, [", ".join(used_by[:-1])]), used_by[-1]])
            tell_warning(f"--{name} {value} changes nothing: no input is {what}.")


def warn_of_unknown_keys(jobs: dict[str, ShardJob], splits: list[Split]) -> None:
    """Print a warning for each corpus of JSON whose first records have no text under one of several keys.

    jobs: by the names of their corpora. Tables must have all the columns, and workers refuse those that do not.
    """
    for name, job in jobs.items():
        if "," not in job.text_key:
            continue
        files = [one for split in splits for one in split.ranges if _begins_json(one) and one.corpus == name]
        keys, records, found = unknown_keys(_heads(files[:LOOKED_AT]), job.text_key)
        if keys and records:
            place = f"corpus {name!r}: " if name else ""
            listed = " or ".join(map(repr, keys))
            tell_warning(
                f"{place}none of the first {records:,} JSON records has a string under {listed} of "
                f"--text_key {job.text_key}.{nearest_name(keys[0], found)}"
            )


def warn_of_another_language(jobs: dict[str, ShardJob], splits: list[Split]) -> None:
    """Print a warning for each corpus that is read as English, as by default, while its text is in another language.

    jobs: by the names of their corpora. Looks at the beginnings of some files of text and of JSON.
    """
    for name, job in jobs.items():
        if job.language != ENGLISH or not is_installed():
            continue
        files = [one for split in splits for one in split.ranges if _begins_prose(one) and one.corpus == name]
        found: Counter[str] = Counter()
        for head in _heads(files[:: -(-len(files) // LOOKED_AT) or 1]):
            text = head.decode(errors="replace")
            code, confidence = detect_language(text)
            is_prose = "\\u" not in text and "\ufffd" not in text[:-1]  # letters that are escaped or lost say nothing
            if is_prose and confidence >= SURE:
                found[code] += len(head)

        if found.total() < LEAST_BYTES or found[ENGLISH] > (1 - MOST) * found.total():
            continue
        code, size = found.most_common(1)[0]
        language = known_language(code)
        is_one = size >= MOST * found.total() and language.name != code  # there are rules for it
        place = f"corpus {name!r}: " if name else ""
        tell_warning(
            f"{place}the text looks like {language.name if is_one else 'several languages'}, and is read by the rules "
            f"of English, which end sentences in other places. Give --language {language.code if is_one else AUTO}."
        )


def _begins_prose(file_range: FileRange) -> bool:
    return file_range.format in ("text", "jsonl", "json") and file_range.start == 0


def _begins_json(file_range: FileRange) -> bool:
    return file_range.format in ("jsonl", "json") and file_range.start == 0


def _heads(files: list[FileRange]) -> Iterator[bytes]:
    """Yield the first bytes of files, as UTF-8."""
    for one in files:
        head = first_bytes(one.file, one.display_path)
        yield head if is_line_safe(one.encoding) else head.decode(one.encoding, errors="replace").encode()
