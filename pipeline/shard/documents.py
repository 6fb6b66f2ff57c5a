"""What is done to each document between its record and its run: the steps of STEPS, any of which may drop it.

A new filter is a function here, such as `without_sentences`, and a row of STEPS. Whatever it drops is counted in the
ledger by its reason, in `RunBuffer.add` (run_buffer.py), which also drops what is beyond the share of its corpus. If it
has a flag, that is a field of ShardJob and of ReadOptions, handed on in pipeline/jobs/shard.py, so that a job with
another value is another job (ShardJob is in pipeline/options.py). If not, raise PIECES_VERSION in
pipeline/commit/staging.py, so that no job continues with runs that were made without it.

Copies within a run are dropped next, in write_runs.py; all others, near-duplicates and held-out documents in
write_shard.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from typing import Any

from pipeline.filters.measures import Measured
from pipeline.filters.rules import RULES, Thresholds, fits
from pipeline.readers.record import MAX_UNDECODABLE_RATIO, RecordOptions
from pipeline.shard.cleaning import clean, drop_long_words, mask_private
from pipeline.shard.contamination import stored_sets
from pipeline.shard.copies import Dedup
from pipeline.shard.detection import AUTO, detect_language
from pipeline.shard.sentences import Splitter, lines_of, sentences_of


@dataclass(slots=True)
class Document:
    """A document on its way from its record to a run.

    source: as in `Record`. changes: the run's counts of changes by their names, to which a step adds.
    language: its code, which a step finds with --language auto; so with confidence, from 0 to 1.
    blocks: the lines of each part of the text between blank lines, once a step has found them. sentences: likewise.
    """

    text: str
    source: str
    changes: Counter[str]
    language: str
    confidence: float = 1.0
    blocks: list[list[str]] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Drop:
    """What a step returns instead of a document that is left out.

    reason: that of the ledger. is_listed: whether OUTPUT/rejected/ names the document.
    """

    reason: str
    is_listed: bool = False


Step = Callable[["Document", "ReadOptions"], "Document | Drop"]
"""Changes a document and returns it, or drops it."""


def clean_text(document: Document, options: ReadOptions) -> Document:
    document.text = clean(document.text, document.changes)
    return document


def find_language_of_text(document: Document, options: ReadOptions) -> Document | Drop:
    """With --language auto, find the language. Drops a document that --languages leaves out, or that may be in any."""
    if options.language != AUTO:
        return document
    document.language, document.confidence = detect_language(document.text)
    if document.confidence < options.min_language_confidence:
        return Drop("language uncertain")
    if options.languages and document.language not in options.languages:
        return Drop(f"language {document.language}")
    return document


def without_evaluation_text(document: Document, options: ReadOptions) -> Document | Drop:
    """Drop a document that shares a run of words with a file of --decontaminate."""
    if not options.evaluation_sets:
        return document
    sets = stored_sets(options.evaluation_sets)
    found = sets.file_with(document.text)
    return Drop(f"{sets.words} words as in {found}", is_listed=True) if found else document


def without_private_data(document: Document, options: ReadOptions) -> Document:
    """With --mask_private, replace addresses and phone numbers."""
    if options.mask_private:
        document.text = mask_private(document.text, document.changes)
    return document


def find_lines(document: Document, options: ReadOptions) -> Document:
    """Join the wrapped lines of the text. Without --filters, which judge its blocks, the whole text is one block."""
    blocks = document.text.split("\n\n") if options.filters else [document.text]
    document.blocks = [lines_of(block, options.sentence_splitter, document.changes, document.text) for block in blocks]
    if options.filters:
        document.blocks = [list(filter(None, map(str.strip, block))) for block in document.blocks]
    return document


def filter_lines(document: Document, options: ReadOptions) -> Document | Drop:
    """Remove the lines that fail a rule of --filters, and count them by the rule that they failed first.

    Drops a document of which no line is left, by the set whose rule removed the last one. A document that was empty
    before stays for a later step.
    """
    if not any(document.blocks) or not options.filters:
        return document
    names = rules_that_judge("line", document, options)
    edits = [edit for name in names if (edit := RULES[name].edit)]
    last_set = ""
    for block in document.blocks:
        for edit in edits:
            block[:] = map(edit, block)

        kept = []
        for line in block:
            failed = options.judge(names, line, options.filters)
            if failed is None:
                kept.append(line)
            else:
                document.changes[f"lines removed ({failed})"] += 1
                last_set = RULES[failed].set
        block[:] = kept
    return document if any(document.blocks) else Drop(f"{last_set} filter: no line left")


def filter_text(document: Document, options: ReadOptions) -> Document | Drop:
    blocks = list(filter(None, document.blocks))
    return _judged(document, Measured(blocks), "text", options) if options.filters and blocks else document


def split_text(document: Document, options: ReadOptions) -> Document:
    """Split the lines into sentences, without words that are encoded files."""
    lines = list(chain.from_iterable(document.blocks))
    sentences = sentences_of(lines, document.language, options.sentence_splitter)
    document.sentences = drop_long_words(sentences, document.changes)
    return document


def without_sentences(document: Document, options: ReadOptions) -> Document | Drop:
    return document if document.sentences else Drop("empty document")


def filter_sentences(document: Document, options: ReadOptions) -> Document | Drop:
    return _judged(document, document.sentences, "sentences", options) if options.filters else document


def _judged(document: Document, measured: Any, judges: str, options: ReadOptions) -> Document | Drop:
    """Return the document, or a Drop that names the first rule that it fails.

    measured: what rules that judge `judges` measure.
    """
    failed = options.judge(rules_that_judge(judges, document, options), measured, options.filters)
    return document if failed is None else Drop(f"{RULES[failed].set} filter: {failed}")


def first_failed(names: list[str], judged: Any, thresholds: Thresholds) -> str | None:
    """Return the first of these rules that a line or a document fails; None if it fails none."""
    for name in names:
        rule = RULES[name]
        if rule.fails(rule.measure(judged), thresholds[name]):
            return name
    return None


def rules_that_judge(judges: str, document: Document, options: ReadOptions) -> list[str]:
    """Return the names of the rules that judge this. Among several languages, they must fit the document's."""
    names = [name for name in options.filters if RULES[name].judges == judges]
    if options.has_languages:
        names = [name for name in names if fits(RULES[name].needs, document.language)]
    return names


STEPS: tuple[Step, ...] = (
    clean_text,
    find_language_of_text,
    without_evaluation_text,
    without_private_data,
    find_lines,
    filter_lines,
    filter_text,
    split_text,
    without_sentences,
    filter_sentences,
)
"""What is done to each document, in this order."""


@dataclass(frozen=True)
class ReadOptions(RecordOptions):
    """How files become documents: the part of the job's options that workers need.

    finds_encodings: whether that of each file is found, with --encoding auto.
    has_languages: whether rows have the columns of languages. has_urls: whether some records may have hosts, which
    runs then count. share: of documents that are kept, by their ids.
    of_corpora: the options of each corpus of --inputs, by its name. They differ in what a corpus may choose.
    judge: how rules are applied; trial.py watches them.
    """

    language: str
    sentence_splitter: Splitter
    dedup: Dedup
    seed: int
    _: KW_ONLY
    max_undecodable_ratio: float = MAX_UNDECODABLE_RATIO
    filters: Thresholds = field(default_factory=dict)
    languages: tuple[str, ...] = ()
    min_language_confidence: float = 0.0
    mask_private: bool = False
    finds_encodings: bool = False
    evaluation_sets: str = ""  # the URL of the file that holds them
    has_languages: bool = False
    has_urls: bool = False
    share: float = 1.0
    of_corpora: Mapping[str, ReadOptions] = field(default_factory=dict)
    judge: Callable[[list[str], Any, Thresholds], str | None] = first_failed
