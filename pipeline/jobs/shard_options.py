"""What flags of `shard` stand for: codes for names of languages, thresholds for sets of rules, hashes for models.

All of it is decided in the launcher, so that a wrong value or a missing package is reported before the job starts. So
are warnings about files and flags that do not do what the user may believe.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from pipeline.filters.rules import Thresholds, chosen_rules
from pipeline.flags import flags_of, recorded_options
from pipeline.options import ShardJob
from pipeline.readers import encodings
from pipeline.readers.corpora import Corpus, read_corpora
from pipeline.readers.encodings import is_line_safe
from pipeline.readers.file_encoding import guesser_version
from pipeline.readers.formats import first_bytes
from pipeline.readers.inputs import FileRange, Split
from pipeline.readers.json_values import unknown_keys
from pipeline.readers.listing import InputFile, Listing
from pipeline.readers.table import READERS
from pipeline.shard.contamination import EvaluationSets, read_evaluation_sets
from pipeline.shard.detection import AUTO, UNKNOWN, detect_language, is_installed, known_codes, model_hash
from pipeline.shard.languages import fallback_note, find_language, known_language
from schemas import storage
from schemas.errors import UsageError, nearest_name
from schemas.terminal import one_line, print_note, tell_warning

LIMITS = ("max_bad_ratio", "max_undecodable_ratio")
"""Options that only decide whether the job fails.

They change no piece, so they are not part of the staging's key: a job with other limits reuses the pieces.
"""

CORPUS_FACTS = ("corpus_name", "corpus_license", "corpus_url")
"""What the cards say of the corpus of --input. These change no piece either."""

OPTIONAL = (
    *CORPUS_FACTS,
    "exclude",
    "languages",
    "min_language_confidence",
    "filters",
    "decontaminate",
    "mask_private",
    "drop_repeats",
    "holdout",
)
"""Options that the manifest records only if they were given."""

LOOKED_AT = 16
"""Maximum files of a corpus whose beginnings are looked at for the keys of --text_key, and for the language."""

ENGLISH = "en"
MOST = 0.8  # of the bytes that were looked at
SURE = 0.65  # FineWeb's least confidence of a document's language
LEAST_BYTES = 2000
"""That are looked at, for a warning about their language: that of a shorter text may be a wrong one."""


@dataclass(frozen=True)
class Resolved:
    """A job whose names were replaced by what they stand for.

    job: with language "auto" if there are several languages. corpora: those of --inputs, or the only one of --input,
    each with the job as its options have it. sets: of --decontaminate.
    """

    job: ShardJob
    corpora: tuple[tuple[Corpus, ShardJob], ...]
    sets: EvaluationSets | None

    def hashes(self) -> dict[str, str]:
        """Return hashes and versions of what decides about the result and is no flag, for its identity."""
        hashes = {}
        if any(job.language == AUTO for _, job in self.corpora):
            hashes["language_model"] = model_hash()
        if any(job.encoding == encodings.AUTO for _, job in self.corpora):
            hashes["charset_normalizer"] = guesser_version()
        if self.sets is not None:
            hashes["evaluation_sets"] = storage.sha256(self.sets.to_bytes())
        return hashes

    def recorded(self) -> dict[str, Any]:
        options = recorded_options(self.job) | self.hashes()
        if self.job.inputs is not None:
            options["corpora"] = [corpus.recorded() for corpus, _ in self.corpora]
        if not self.job.decontaminate:
            del options["decontaminate_words"]
        return {name: value for name, value in options.items() if value or name not in OPTIONAL}

    def identity(self, listings: list[Listing]) -> dict[str, Any]:
        """Return what the pieces of the job depend on. Jobs with the same identity share their staging."""
        unkeyed = (*LIMITS, *CORPUS_FACTS, "exclude")  # the files are what is left
        options = {name: value for name, value in recorded_options(self.job).items() if name not in unkeyed}
        whole = one_listing(listings)
        identity: dict[str, Any] = {
            "options": options | self.hashes(),
            "seed": self.job.seed,
            "files": [list(file) for file in whole.files],
        }
        if whole.in_folders:
            identity["in_folders"] = sorted(whole.in_folders)
        if self.job.inputs is not None:
            of_corpora = zip(self.corpora, listings, strict=True)
            identity["corpora"] = [
                [corpus.recorded(), [file.path for file in listing.files]] for (corpus, _), listing in of_corpora
            ]
        return identity


def resolved(job: ShardJob) -> Resolved:
    """Return the job with what its names stand for.

    Raises UsageError for an unknown name, a missing package or a flag without effect, and DataError for a file that
    cannot be read. Prints notes about what a language or a set lacks.
    """
    if (job.input is None) == (job.inputs is None):
        raise UsageError("Give --input, with files or folders, or --inputs, with a TOML file of several corpora.")
    _check_corpus_facts(job)
    corpora = [Corpus(patterns=tuple(job.input))] if job.input is not None else read_corpora(str(job.inputs))
    jobs = [_with_codes(_with_options(job, corpus)) for corpus in corpora]

    codes = {one.language for one in jobs}
    if AUTO in codes:
        languages = None if job.languages is None else ",".join(_wanted_codes(job.languages))
        job = replace(job, languages=languages)
    else:
        _refuse_flags_of_auto(job)
    job = replace(job, encoding=_encoding(job.encoding), language=codes.pop() if len(codes) == 1 else AUTO)
    if job.filters is not None:
        job = replace(job, filters=_chosen_filters(job))

    sets = _evaluation_sets(job)
    if sets is not None:
        job = replace(job, decontaminate=sets.names)
    jobs = [replace(one, filters=job.filters, languages=job.languages) for one in jobs]
    return Resolved(job, tuple(zip(corpora, jobs, strict=True)), sets)


def _check_corpus_facts(job: ShardJob) -> None:
    given = [f"--{name}" for name in CORPUS_FACTS if getattr(job, name)]
    if given and job.inputs is not None:
        raise UsageError(
            f"{given[0]} is of the corpus of --input. Write it into {storage.printable(job.inputs)}, as "
            f"{given[0].removeprefix('--corpus_')} of each [[corpus]]."
        )
    if given and not job.corpus_name:
        raise UsageError(f"{given[0]} needs --corpus_name, under which the cards show it.")


def one_listing(listings: list[Listing]) -> Listing:
    if len(listings) == 1:
        return listings[0]
    files = sorted(file for listing in listings for file in listing.files)
    in_folders = frozenset().union(*(listing.in_folders for listing in listings))
    return Listing(files, in_folders, [folder for listing in listings for folder in listing.folders])


def _with_options(job: ShardJob, corpus: Corpus) -> ShardJob:
    flags = flags_of(ShardJob)
    for name, value in corpus.options.items():
        check = getattr(flags[name][0], "check", None)
        if isinstance(check, tuple) and value not in check:
            place = f"--inputs {job.inputs}, corpus {corpus.name!r}"
            raise UsageError(f"{place}: {name} = {value!r} is none of {', '.join(check)}.")
    return replace(job, **corpus.options)


def _with_codes(job: ShardJob) -> ShardJob:
    job = replace(job, encoding=_encoding(job.encoding))
    if job.language.strip().lower() == AUTO:
        model_hash()  # to say at once that a package is missing
        return replace(job, language=AUTO)

    language = find_language(job.language)
    note = fallback_note(language)
    if note and job.sentence_splitter != "newline":
        print_note(note)
    return replace(job, language=language.code)


def _encoding(name: str) -> str:
    if name.strip().lower() != encodings.AUTO:
        return encodings.canonical_encoding(name)
    guesser_version()  # to say at once that a package is missing
    return encodings.AUTO


def _evaluation_sets(job: ShardJob) -> EvaluationSets | None:
    if not job.decontaminate:
        return None

    paths = [path for given in job.decontaminate for path in given.split(",") if path]
    sets = read_evaluation_sets(paths, job.decontaminate_words)
    if sets.skipped:
        found = f"{sets.skipped:,} texts of --decontaminate have fewer than {sets.words} words"
        print_note(f"Note: {found}, so they are not looked for.")
    return sets


def _wanted_codes(given: str) -> list[str]:
    """Return the codes of --languages, sorted. Raises UsageError for a language that cannot be found."""
    known = known_codes()
    codes = set()
    for name in filter(None, map(str.strip, given.split(","))):
        code = name.lower() if name.lower() in known else find_language(name).code
        if code not in (*known, UNKNOWN):
            hint = nearest_name(name, known)
            raise UsageError(f"--languages {name!r} is none of the {len(known)} languages that can be found.{hint}")
        codes.add(code)
    if not codes:
        raise UsageError("--languages names no language. Give codes with commas between, such as en,de.")
    return sorted(codes)


def _refuse_flags_of_auto(job: ShardJob) -> None:
    for name in ("languages", "min_language_confidence"):
        if getattr(job, name) is not None:
            raise UsageError(f"--{name} needs --language auto, which finds the language of each document.")


def _chosen_filters(job: ShardJob) -> Thresholds:
    """Return the rules of --filters with their thresholds. Prints those that do not fit the language."""
    assert isinstance(job.filters, str)
    if job.language == AUTO:
        return chosen_rules(job.filters, None)[0]

    language = find_language(job.language)
    chosen, unfit = chosen_rules(job.filters, language.code, language.rules)
    if unfit:
        print_note(
            f"Note: these rules of --filters {job.filters} do not fit {language.name} and are left out: "
            f"{', '.join(unfit)}. A .toml file that names them applies them."
        )
    return chosen


# Checks and warnings


def check_inputs_are_outside(output: str, listing: Listing) -> None:
    """Raise UsageError if a pattern or a folder of the input may have shards of this job next.

    That is if an input file is directly in the output folder, or if that is in a folder of the input.
    """
    for folder in listing.folders:
        if _is_inside(output, folder):
            raise UsageError(
                f"--output {storage.printable(output)} is in the folder {storage.printable(folder)} of --input, whose "
                "files are all read. Give --output another folder."
            )
    if not storage.is_local(output):
        return

    folder = os.path.realpath(storage.filesystem(output)[1])
    for file in listing.files:
        if "://" not in file.path and os.path.dirname(os.path.realpath(file.path)) == folder:
            raise UsageError(
                f"--output {storage.printable(output)} is the folder of the input {storage.printable(file.path)}. Give "
                "--output another folder."
            )


def _is_inside(output: str, folder: str) -> bool:
    if storage.is_local(output) and storage.is_local(folder):
        paths = [os.path.realpath(storage.filesystem(url)[1]) for url in (output, folder)]
    else:
        paths = [url.rstrip("/") for url in (output, folder)]
    return f"{paths[0]}/".startswith(f"{paths[1].rstrip('/')}/")


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
    if not formats.isdisjoint(("auto", "zip", "tar")):  # the workers detect what is in them
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
        files = _beginnings(splits, name, ("jsonl", "json"))
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
        files = _beginnings(splits, name, ("text", "jsonl", "json"))
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


def _beginnings(splits: list[Split], corpus: str, formats: tuple[str, ...]) -> list[FileRange]:
    ranges = [one for split in splits for one in split.ranges if one.start == 0 and one.corpus == corpus]
    return [one for one in ranges if one.format in formats]


def _heads(files: list[FileRange]) -> Iterator[bytes]:
    """Yield the first bytes of files, as UTF-8."""
    for one in files:
        head = first_bytes(one.file, one.display_path)
        yield head if is_line_safe(one.encoding) else head.decode(one.encoding, errors="replace").encode()
