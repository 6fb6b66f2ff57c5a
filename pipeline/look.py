"""Looks at a folder before anything is made of it: kinds and encodings of files, keys of texts, languages.

Up to MAX_OPENED files are opened, SAMPLE documents are read, and small compressed files to their end, so this takes
seconds for any folder. The amounts are estimates; `shard` says what became of every file.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from glob import escape
from itertools import islice

from pipeline.look_sample import bad_records, is_empty, is_one_document, records_of, sampled_from, traits_of
from pipeline.readers.encodings import AUTO, UTF8
from pipeline.readers.formats import ForeignFileError, advice_on, plain_name
from pipeline.readers.frames import check_end
from pipeline.readers.inputs import FileRange, ranges_of, with_format
from pipeline.readers.jsonl import NO_TEXT
from pipeline.readers.listing import InputFile, list_inputs, without
from pipeline.readers.open import DECOMPRESSION_ERRORS, open_plain
from pipeline.readers.ranges import open_range
from pipeline.readers.record import Record, RecordOptions, TextLayout
from pipeline.readers.table import cut_off
from pipeline.shard.detection import AUTO as AUTO_LANGUAGE
from pipeline.shard.detection import SCRIPTS, UNKNOWN
from pipeline.shard.text_layout import doubt, guessed_layout, have_sentence_lines
from pipeline.text_keys import text_keys
from schemas import storage
from schemas.errors import DataError, UsageError
from schemas.randomness import key
from schemas.storage import concurrently
from schemas.terminal import counted, labeled, megabytes, next_is

MAX_OPENED = 1000
"""Files that are opened, from all over a folder. Others are left out if all opened ones whose names end alike are."""

MAX_DECOMPRESSED = 16 << 20
"""Bytes of compressed files that are decompressed to their end, to see whether it is there."""

MORE_SURVEYS = 2  # of many bad files, each finds some
MAX_FAULTS = 5  # that are listed
MAX_UNREAD = 5  # keys, likewise
EXCERPT = 200  # characters of a document
MAIN_SHARE = 0.98
"""A text in one language by this share is taken to be in that one: the rest is names, quotations and errors."""


Found = dict[InputFile, FileRange | DataError]
"""What each file is. ForeignFileError: it is left out."""


@dataclass(frozen=True)
class Kind:
    """Files of one kind. name: their format, or what they are if they are left out. has_text: as far as is seen."""

    name: str
    is_read: bool
    files: int
    bytes: int
    has_text: bool = True


@dataclass(frozen=True)
class Look:
    """What a folder holds.

    text_key: of records and tables, as a flag of `shard`. text_layout: what separates documents in plain text.
    text_bytes, documents: estimates. languages: the share of the sampled text in each, most first; empty if the
    identifier is not installed. scripts: the share in each of SCRIPTS. encodings: files of text that are not UTF-8, by
    their encoding. ranges: the files that count here: all that can be read. faults: sentences on what ends `shard`, as
    far as that is seen: first one on each file of unreadable, then on files with more bad records than it allows.
    unreadable: the paths of files that cannot be read, unless no other is left. odd: one on files that text_layout may
    not suit. unread_keys: as in `TextKeys`.
    is_of_sentences: whether all of it is plain text that has a sentence in each line.
    traits: sentences on records without text, and on texts that hold something else than prose.
    """

    kinds: list[Kind]
    text_key: str
    text_layout: TextLayout
    text_bytes: int
    documents: int
    languages: dict[str, float]
    encodings: dict[str, int]
    ranges: list[FileRange] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    odd: str = ""
    unread_keys: dict[str, int] = field(default_factory=dict)
    is_of_sentences: bool = False
    scripts: dict[str, float] = field(default_factory=dict)
    traits: list[str] = field(default_factory=list)

    @property
    def language(self) -> str | None:
        """The language for `shard`: "auto" if the text is in several, None if none was looked for."""
        if not self.languages:
            return None
        most, share = next(iter(self.languages.items()))
        return most if share >= MAIN_SHARE else AUTO_LANGUAGE


def look_at(folder: str, exclude: Sequence[str] = ()) -> Look:
    """Look at a folder, a file or a pattern, without what `exclude` names. Raises UsageError if it holds no text."""
    try:
        listing = without([list_inputs(folder)], exclude)[0]
    except UsageError as error:
        raise UsageError(str(error).removeprefix("--input ")) from error
    found = _found(listing.files)
    kinds = _kinds(found)
    readable = [one for one in found.values() if isinstance(one, FileRange)]
    faults = _refused(found, listing.in_folders) | _cut_off(readable[:MAX_OPENED])
    if not readable:
        raise _no_text(folder, kinds, list(faults.values()) or [str(next(iter(found.values())))])

    look, bad = _survey(readable, faults, kinds)
    faults |= {one.path: bad.pop(one.path) for one in readable if one.path in bad and is_one_document(one)}
    all_faults = [*faults.values(), *bad.values()]
    if look.text_bytes == 0:
        raise _no_text(folder, kinds, all_faults)
    unreadable = sorted(faults) if any(one.path not in faults for one in readable) else []
    return replace(look, faults=all_faults, unreadable=unreadable)


def _sound(readable: list[FileRange], faults: dict[str, str]) -> list[FileRange]:
    return [one for one in readable if one.path not in faults] or readable


def _survey(readable: list[FileRange], faults: dict[str, str], kinds: list[Kind]) -> tuple[Look, dict[str, str]]:
    """Read a sample of all files without faults, again while it finds some: what it cannot read must not count."""
    look, bad = _survey_of(_sound(readable, faults), faults, kinds)
    for _ in range(MORE_SURVEYS):
        if (sound := _sound(readable, faults)) == look.ranges:
            break
        look, bad = _survey_of(sound, faults, kinds)
    return look, bad


def _survey_of(ranges: list[FileRange], faults: dict[str, str], kinds: list[Kind]) -> tuple[Look, dict[str, str]]:
    """Return what a sample of all files shows, and a sentence on the first bad record of each, if there are too many.

    faults: as in `sampled_from`.
    """
    texts = [one for one in ranges if one.format == "text"]

    @cache
    def pieces() -> tuple[int, int]:
        sampled = sampled_from(texts, RecordOptions("text", "blank_line"), {})
        return sampled.documents, sampled.text_bytes

    keys, layout = text_keys(ranges, MAX_OPENED), guessed_layout(texts, pieces)
    # Each format by itself, because the share of text in a file differs most between formats.
    by_format: dict[str, list[FileRange]] = defaultdict(list)
    for one in ranges:
        by_format[one.format].append(one)
    options = RecordOptions(keys.read, layout)
    sampled = {name: sampled_from(of_format, options, faults) for name, of_format in by_format.items()}
    for name in ("text", "auto") if layout == "file" else ():
        if name in sampled:
            sampled[name].all_documents = len(by_format[name])

    sums = sampled.values()
    by_language = sum((one.by_language for one in sums), Counter[str]())
    text_bytes = sum(one.text_bytes for one in sums)
    empty = [name for name, one in sampled.items() if not one.text_bytes and not one.bad]
    look = Look(
        [replace(kind, has_text=kind.name not in empty) for kind in kinds],
        keys.read,
        layout,
        text_bytes=round(sum(one.all_bytes for one in sums)),
        documents=round(sum(one.all_documents for one in sums)),
        languages={code: size / by_language.total() for code, size in by_language.most_common()},
        encodings=dict(Counter(one.encoding for one in ranges if one.encoding not in (UTF8, AUTO)).most_common()),
        ranges=ranges,
        odd=doubt(texts, layout, pieces),
        unread_keys=keys.unread,
        is_of_sentences=len(texts) == len(ranges) and layout == "blank_line" and have_sentence_lines(texts),
        scripts={name: sum(one.by_script[name] for one in sums) / max(1, text_bytes) for name in SCRIPTS},
        traits=list(traits_of(sums, keys.read)),
    )
    return look, bad_records(sums)


def unreadable_in(folder: str, look: Look) -> list[str]:
    """Return the files of a folder that cannot be read, as --exclude takes them."""
    return [escape(path.removeprefix(os.path.join(folder, ""))) for path in look.unreadable]


def look_lines(folder: str, look: Look) -> Iterator[str]:
    """Yield lines for the terminal: kinds of files, read and left out, and the text in them."""
    files, size = sum(kind.files for kind in look.kinds), sum(kind.bytes for kind in look.kinds)
    yield f"{storage.printable(folder)}: {counted(files, 'file')}, {megabytes(size)}"
    for title, is_read in (("read", True), ("left out", False)):
        for kind in look.kinds:
            if kind.is_read == is_read:
                note = "" if is_read and kind.has_text else _why_unread(kind, is_damaged=False)
                yield f"  {title:<9} {kind.files:>7,} x {megabytes(kind.bytes):>11}  {kind.name}{note}"
    languages = ", ".join(f"{code} {share:.0%}" for code, share in look.languages.items() if share >= 0.005)
    text = f"{megabytes(look.text_bytes)} of text in {counted(look.documents, 'document')}"
    yield f"About {text}; languages: {languages or '?'}."
    if look.languages.get(UNKNOWN, 0) > 1 - MAIN_SHARE:
        yield f"{UNKNOWN} is text whose language is not known for sure. If it is in one, name it with --language."
    if look.encodings:
        yield f"Not UTF-8: {', '.join(f'{files:,} x {name}' for name, files in look.encodings.items())}."
    if look.unread_keys:
        longest = sorted(look.unread_keys, key=lambda name: (-look.unread_keys[name], name))[:MAX_UNREAD]
        unread = ", ".join(f"{name} ({look.unread_keys[name]:,} characters)" for name in longest)
        yield f"Text is read under {look.text_key}. Others, by what a record has on average: {unread}."
    yield from look.traits
    yield from _first(look.faults)
    if look.odd:
        yield look.odd
    for one in look.ranges:
        parent, _, name = one.display_path.rpartition("/")
        if name == "dataset_dict.json":  # of `datasets`
            yield f"All splits of the dataset in {parent} are read. To read one, name its folder, as in {parent}/train."


def corpus_lines(path: str, rows: int, exclude: Sequence[str] = ()) -> Iterator[str]:
    """Yield what a corpus holds without the files of `exclude`, about `rows` of its documents, and what is next.

    Raises DataError if it holds no text that can be read.
    """
    try:
        look = look_at(path, exclude)
    except UsageError as error:  # nothing is wrong: it is no text
        raise DataError(str(error)) from error
    yield from look_lines(path, look)
    records = records_of(look.ranges, RecordOptions(look.text_key, look.text_layout), rows, {})
    documents = (record for record, *_ in records if isinstance(record, Record) and not is_empty(record))
    for document in islice(documents, rows):
        text = " ".join(document.text[: 2 * EXCERPT].split())[:EXCERPT]
        yield labeled("document", f"{text} ..." if len(document.text) > EXCERPT else text)

    if len(look.faults) > len(look.unreadable):
        yield from next_is(
            "repair the files, leave them out, or give the flags named above: `clozeline shard` would end with what is "
            "said there"
        )
        return
    flags = f" --exclude {shlex.join(left_out)}" if (left_out := [*exclude, *unreadable_in(path, look)]) else ""
    flags += "" if look.language in (None, "en") else f" --language {look.language}"
    has_archives = any(one.reader.members is not None for one in look.ranges)  # whose members may have any encoding
    flags += " --encoding auto" if look.encodings or has_archives else ""
    flags += "" if look.text_key == "text" else f" --text_key {shlex.quote(look.text_key)}"
    flags += "" if look.text_layout == "blank_line" else f" --text_layout {look.text_layout}"
    flags += " --sentence_splitter newline" if look.is_of_sentences else ""
    start = f"clozeline start {shlex.quote(path)}    all steps to an encoder"
    if exclude:
        start = f"clozeline start {shlex.quote(path)} --plan_only    a plan, whose [shard] takes exclude = [...]"
    yield from next_is(
        start,
        f"clozeline shard --input {shlex.quote(path)} --output DIR{flags}    or step by step, this one first",
    )


def _first(faults: list[str]) -> list[str]:
    more = len(faults) - MAX_FAULTS
    return faults[:MAX_FAULTS] + ([f"{counted(more, 'more fault')} like these."] if more > 0 else [])


def _no_text(folder: str, kinds: list[Kind], causes: list[str]) -> UsageError:
    is_damaged = any(NO_TEXT not in cause for cause in causes)
    found = ", ".join(f"{kind.files:,} x {kind.name}{_why_unread(kind, is_damaged)}" for kind in kinds)
    said = f"{storage.printable(folder)} holds no text that can be read: {found}."
    return UsageError(" ".join([said, *_first(causes)]))


def _why_unread(kind: Kind, is_damaged: bool) -> str:
    advice = "" if is_damaged else advice_on("without text", kind.name)
    return f" without text{advice}" if kind.is_read else advice_on(kind.name)


def _found(files: list[InputFile]) -> Found:
    """Return what each file is. Of many files some are opened, and others whose names end alike may be left out."""
    opens = map if storage.is_local(files[0].path) else concurrently  # a store takes long to answer each
    opened = files if len(files) <= MAX_OPENED else _some_of_each_ending(files)
    found = dict(zip(opened, opens(_opened, opened), strict=True))

    left_out: dict[str, ForeignFileError | None] = {}
    for file, one in found.items():
        error = one if isinstance(one, ForeignFileError) else None
        before = left_out.setdefault(_ending(file), error)
        left_out[_ending(file)] = before if error and before and error.kind == before.kind else None
    return {file: found.get(file) or left_out.get(_ending(file)) or _whole(file) for file in files}


def _some_of_each_ending(files: list[InputFile]) -> list[InputFile]:
    """Return up to MAX_OPENED files: all whose names end in a rare way, and equal numbers of the others."""
    groups: dict[str, list[InputFile]] = defaultdict(list)
    for file in files:
        groups[_ending(file)].append(file)
    opened: list[InputFile] = []
    for number, group in enumerate(sorted(groups.values(), key=len)):
        share = (MAX_OPENED - len(opened)) // (len(groups) - number)
        if share < len(group):  # a constant step could meet every other kind of file alone
            group = [group[place] for place in sorted({key(index) % len(group) for index in range(share)})]
        opened += group
    return opened


def _ending(file: InputFile) -> str:
    return os.path.splitext(plain_name(file.path))[1]


def _opened(file: InputFile) -> FileRange | DataError:
    """Return a file as a range with its format, or why it is not read: ForeignFileError if it is left out."""
    try:
        return with_format(_whole(file))
    except DataError as error:
        return error


def _whole(file: InputFile) -> FileRange:
    """Return a file as a range, without its format."""
    return replace(next(ranges_of(file, "auto", AUTO)), end=file.size, in_folder=True)


def _refused(found: Found, in_folders: frozenset[str]) -> dict[str, str]:
    """Return a sentence for each file that `shard` refuses, by path. It leaves files out that only a folder names."""
    refused = {file.path: one for file, one in found.items() if isinstance(one, DataError)}
    return {
        path: str(error)
        for path, error in refused.items()
        if not isinstance(error, ForeignFileError) or path not in in_folders
    }


def _cut_off(ranges: list[FileRange]) -> dict[str, str]:
    """Return a sentence for each compressed file of this machine that is seen to lack its end, by path."""
    faults = {}
    left = MAX_DECOMPRESSED
    for one in ranges:
        if one.compression is None or not storage.is_local(one.path):
            continue
        try:
            if one.compression == "bz2":
                with open_range(one.file, max(0, one.size - 16)) as file:  # the end has 11
                    check_end(file.read())
            elif one.size <= left:
                left -= one.size
                with open_plain(open_range(one.file), one.display_path, one.compression) as file:
                    while file.read(1 << 20):
                        pass
        except DataError as error:
            faults[one.path] = str(error)
        except DECOMPRESSION_ERRORS as error:
            faults[one.path] = str(cut_off(one, error))
    return faults


def _kinds(found: Found) -> list[Kind]:
    """Return the kinds of files: those that are read first, and of these the largest."""
    sizes: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for file, one in found.items():
        if isinstance(one, FileRange):
            kind = (one.format.replace("auto", "not opened"), True)
        else:
            kind = (one.kind if isinstance(one, ForeignFileError) else "cannot be read", False)
        sizes[kind].append(file.size)
    order = sorted(sizes, key=lambda kind: (not kind[1], -sum(sizes[kind]), kind[0]))
    return [Kind(*kind, len(sizes[kind]), sum(sizes[kind])) for kind in order]
