"""What flags of `shard` stand for: codes for names of languages, thresholds for sets of rules, hashes for models.

All of it is decided in the launcher, so that a wrong value or a missing package is told before anything starts.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from pipeline.filters.rules import Thresholds, chosen_rules
from pipeline.flags import recorded_options
from pipeline.options import ShardJob
from pipeline.readers.encodings import canonical_encoding
from pipeline.shard.contamination import EvaluationSets, read_evaluation_sets
from pipeline.shard.detection import AUTO, known_codes, model_hash
from pipeline.shard.languages import Language, fallback_note, find_language
from schemas import storage
from schemas.errors import UsageError, nearest_name

LIMITS = ("max_bad_ratio", "max_undecodable_ratio")
"""Options that only decide whether the job fails.

They change no piece, so they are not part of the staging's key: a job with other limits reuses the pieces.
"""

OPTIONAL = ("languages", "min_language_confidence", "filters", "decontaminate", "mask_private", "holdout")
"""Options that the manifest records only if they were given."""


def resolved(job: ShardJob) -> tuple[ShardJob, EvaluationSets | None]:
    """Return the job with what its names stand for, and the sets of --decontaminate.

    Raises UsageError for an unknown name, a missing package or a flag without effect, and DataError for a file that
    cannot be read. Prints notes about what a language or a set lacks.
    """
    job = replace(job, encoding=canonical_encoding(job.encoding))
    language = None
    if job.language.strip().lower() == AUTO:
        languages = None if job.languages is None else ",".join(_wanted_codes(job.languages))
        job = replace(job, language=AUTO, languages=languages)
    else:
        _refuse_flags_of_auto(job)
        language = find_language(job.language)
        _note_rules_of_another_language(language, job)
        job = replace(job, language=language.code)

    if job.filters is not None:
        job = replace(job, filters=_chosen_filters(job, language))
    if not job.decontaminate:
        return job, None

    paths = [path for given in job.decontaminate for path in given.split(",") if path]
    sets = read_evaluation_sets(paths, job.decontaminate_words)
    if sets.skipped:
        found = f"{sets.skipped:,} texts of --decontaminate have fewer than {sets.words} words"
        print(f"Note: {found}, so they are not looked for.", file=sys.stderr)
    return replace(job, decontaminate=sets.names), sets


def hashes_of(job: ShardJob, sets: EvaluationSets | None) -> dict[str, str]:
    """Return hashes of what decides about the result and is no flag, for its identity."""
    hashes = {}
    if job.language == AUTO:
        hashes["language_model"] = model_hash()
    if sets is not None:
        hashes["evaluation_sets"] = storage.sha256(sets.to_bytes())
    return hashes


def recorded(job: ShardJob, hashes: dict[str, str]) -> dict[str, Any]:
    """Return the options that the manifest records."""
    options = recorded_options(job) | hashes
    if not job.decontaminate:
        del options["decontaminate_words"]
    return {name: value for name, value in options.items() if value or name not in OPTIONAL}


def _wanted_codes(given: str) -> list[str]:
    """Return the codes of --languages, sorted. Raises UsageError for a language that cannot be found."""
    known = known_codes()
    codes = set()
    for name in filter(None, map(str.strip, given.split(","))):
        code = name.lower() if name.lower() in known else find_language(name).code
        if code not in known:
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


def _note_rules_of_another_language(language: Language, job: ShardJob) -> None:
    note = fallback_note(language)
    if note and job.sentence_splitter != "newline":
        print(note, file=sys.stderr)


def _chosen_filters(job: ShardJob, language: Language | None) -> Thresholds:
    """Return the rules of --filters with their thresholds. Prints those that do not fit the language."""
    assert isinstance(job.filters, str)
    if language is None:
        return chosen_rules(job.filters, None)[0]

    chosen, unfit = chosen_rules(job.filters, language.code, language.rules)
    if unfit:
        print(
            f"Note: these rules of --filters {job.filters} do not fit {language.name} and are left out: "
            f"{', '.join(unfit)}. A .toml file that names them applies them.",
            file=sys.stderr,
        )
    return chosen
