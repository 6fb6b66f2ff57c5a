"""What `vocab --extend FOLDER --add N` determines from the folder before its job starts."""

from __future__ import annotations

import json
import os
from dataclasses import replace

from pipeline.options import VocabJob
from pipeline.pairs.published_tokenizer import without_dropout
from pipeline.vocab.extend import check_extendable
from pipeline.words.rules import check_rules
from schemas import storage
from schemas.errors import DataError, UsageError
from schemas.manifest import Input
from schemas.vocabulary import TOKENIZER_FILE, parse_vocabulary


def resolve_extension(job: VocabJob) -> tuple[VocabJob, list[Input]]:
    """Return the job with the model, case and size that follow from the folder, and the folder as an input.

    A job that extends nothing is returned unchanged. Raises UsageError if the folder is the output, and DataError if it
    has no vocabulary, or one that cannot be extended.
    """
    if job.extend is None:
        return job, []
    _check_output(job.output, job.extend)

    url = storage.join(job.extend, TOKENIZER_FILE)
    if not storage.exists(url):
        raise DataError(
            f"--extend {storage.printable(job.extend)} holds no {TOKENIZER_FILE}. Give the folder of a vocabulary or "
            "of a published tokenizer."
        )

    tokenizer_json, _ = without_dropout(storage.read(url), url)
    vocabulary = parse_vocabulary(tokenizer_json, url)
    check_rules(tokenizer_json, vocabulary.model, storage.printable(job.extend))
    check_extendable(tokenizer_json, vocabulary, storage.printable(url))

    normalizer = json.loads(tokenizer_json).get("normalizer") or {}
    resolved = replace(
        job,
        model=vocabulary.model,
        lowercase=vocabulary.model == "wordpiece" and bool(normalizer.get("lowercase")),
        keep_accents=False,  # decided by the folder's own rules
        size=vocabulary.size + int(job.add or 0),
    )
    return resolved, [Input(path=storage.printable(job.extend), fingerprint=vocabulary.fingerprint)]


def _check_output(output: str, extended: str) -> None:
    """Raise UsageError if the output is the extended folder: the same command again would then extend the result."""
    if _place(output) == _place(extended):
        raise UsageError(
            f"--output {storage.printable(output)} is the folder that --extend names, and the same command again would "
            "extend its own result. Give another folder."
        )


def _place(folder: str) -> tuple[type, str]:
    fs, path = storage.filesystem(folder)
    return type(fs), os.path.realpath(path) if storage.is_local(folder) else path.rstrip("/")
