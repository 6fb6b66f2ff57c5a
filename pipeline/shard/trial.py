"""Tries the rules of --filters on documents: what each rule measures and removes, with examples near its threshold.

Documents take the steps of documents.py, as in the job. Before a step that applies rules, each of them measures what
the step gets, whether or not an earlier rule has removed it: a document that a rule drops takes the later steps all the
same. So the trial also knows what each rule would remove without the others, except lines: rules for documents never
see removed lines.

Bytes are those of the text, in UTF-8. Those of a document are divided: those of its removed lines count for the rules
that removed these, and the rest for the rule that dropped the document, or for the kept ones.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from pipeline.filters.measures import Measured
from pipeline.filters.rules import RULES
from pipeline.shard.documents import (
    STEPS,
    Document,
    Drop,
    ReadOptions,
    Step,
    filter_lines,
    filter_sentences,
    filter_text,
    rules_that_judge,
)

EXAMPLES = 5
"""Examples of what a rule removed, and of what it kept."""

EXCERPT = 600
"""Characters of an example."""

GREATEST = 1e12
"""No measure reaches this, and differences from it are exact enough to find the nearest examples."""


class Origin(NamedTuple):
    """Where a document is from: its source as in `Record`, and its place in words."""

    source: str
    place: str


class Example(NamedTuple):
    """A line or a document near a threshold. distance: from the threshold. order: of what the rule measured."""

    distance: float
    order: int
    value: float
    excerpt: str
    is_cut: bool
    origin: Origin

    @property
    def shown_value(self) -> str:
        """The value: a whole number as it is, another one with four digits."""
        return f"{int(self.value):,}" if float(self.value).is_integer() else f"{self.value:.4g}"


@dataclass
class Nearest:
    """The examples with the least distance, nearest first, and of equal ones the first; none with the same excerpt."""

    examples: list[Example] = field(default_factory=list)

    def add(self, distance: float, order: int, value: float, judged: Any, origin: Origin) -> None:
        """Take an example if it is near enough. judged: what the rule measured."""
        if len(self.examples) == EXAMPLES and (distance, order) > self.examples[-1][:2]:
            return
        text = _beginning(judged)
        if text[:EXCERPT] in [example.excerpt for example in self.examples]:
            return
        insort(self.examples, Example(distance, order, value, text[:EXCERPT], len(text) > EXCERPT, origin))
        del self.examples[EXAMPLES:]


def _beginning(judged: Any) -> str:
    """Return the first characters of what a rule measured: EXCERPT, or more."""
    if isinstance(judged, str):
        return judged[: EXCERPT + 1]
    # No line and no sentence is empty.
    parts, mark = (judged.lines, "\n") if isinstance(judged, Measured) else (judged, " ")
    return mark.join(part[: EXCERPT + 1] for part in parts[: EXCERPT + 1])


@dataclass
class Tried:
    """What a rule did.

    values: how often it measured each value. failed: lines or documents that fail it. removed: those that it removed,
    because they fail none before. removed_bytes: of these. dropped: examples of them. kept: of what does not fail it.
    """

    name: str
    threshold: float | None
    measured: int = 0
    values: Counter[float] = field(default_factory=Counter)
    failed: int = 0
    removed: int = 0
    removed_bytes: int = 0
    dropped: Nearest = field(default_factory=Nearest)
    kept: Nearest = field(default_factory=Nearest)

    def take(self, judged: Any, origin: Origin, may_remove: bool) -> bool:
        """Measure a line or a document, and return whether it fails. may_remove: whether it is still there."""
        rule = RULES[self.name]
        value = rule.measure(judged)
        fails = rule.fails(value, self.threshold)
        self.measured += 1
        self.values[value] += 1

        if fails:
            self.failed += 1
            self.removed += may_remove
        if may_remove or not fails:
            examples = self.dropped if fails else self.kept
            examples.add(abs(value - (self.threshold or 0)), self.measured, value, judged, origin)
        return fails


@dataclass
class Share:
    """Some of the documents, or of the lines of one: their number, and the bytes of their text."""

    count: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        """Add a document or a line."""
        self.count += 1
        self.bytes += size


class Trial:
    """The rules of a job, and what they did to the documents so far.

    rules: in the order in which they apply. kept: documents that stay. untouched: those of them that lost no line.
    left_out: the others, by the ledger's reason. not_documents: records without text that are no documents, such as
    blank lines, by reason. changes: of all documents, as far as they stayed.
    """

    def __init__(self, options: ReadOptions):
        self._options = options
        self.rules = {name: Tried(name, _finite(threshold)) for name, threshold in options.filters.items()}
        self.all = Share()
        self.kept = Share()
        self.untouched = Share()
        self.left_out: defaultdict[str, Share] = defaultdict(Share)
        self.not_documents: Counter[str] = Counter()
        self.changes: Counter[str] = Counter()

    def leave_out(self, reason: str, size: int) -> None:
        """Count a bad record of this many bytes."""
        self.all.add(size)
        self.left_out[reason].add(size)

    def add(self, text: str, origin: Origin) -> None:
        """Take a document through all steps."""
        size = len(text.encode(errors="replace"))
        self.all.add(size)
        document = Document(text, origin.source, self.changes, self._options.language)
        reason = ""
        lost = Share()

        for step in STEPS:
            if step is filter_lines:
                lost = self._try_lines(document, origin)
            elif step in _JUDGED:
                self._try_document(step, document, origin, may_remove=not reason)

            result = step(document, self._options)
            if isinstance(result, Drop):
                reason = reason or result.reason
                document.changes = Counter()  # of what is left out already
                if result.reason.rpartition(" filter: ")[2] not in self.rules:
                    break
            else:
                document = result

        self._count(reason, size, lost)

    def _count(self, reason: str, size: int, lost: Share) -> None:
        """Count a document that was dropped for a reason, or stays. lost: its removed lines."""
        (self.left_out[reason] if reason else self.kept).add(max(0, size - lost.bytes))
        if not reason and not lost.count:
            self.untouched.add(size)

    def _try_lines(self, document: Document, origin: Origin) -> Share:
        """Let each rule measure each line. Return the lines that are removed."""
        names = rules_that_judge("line", document, self._options)
        edits = [edit for name in names if (edit := RULES[name].edit)]
        lost = Share()
        for line in chain.from_iterable(document.blocks):
            for edit in edits:
                line = edit(line)
            removed_by = self._first_failed(names, line, origin, may_remove=True)
            if removed_by:
                size = len(line.encode())
                removed_by.removed_bytes += size
                lost.add(size)
        return lost

    def _try_document(self, step: Step, document: Document, origin: Origin, may_remove: bool) -> None:
        judges, judged_of = _JUDGED[step]
        judged = judged_of(document)
        if judged is not None:
            self._first_failed(rules_that_judge(judges, document, self._options), judged, origin, may_remove)

    def _first_failed(self, names: list[str], judged: Any, origin: Origin, may_remove: bool) -> Tried | None:
        """Let rules measure a line or a document. Return the first that it fails; None if it fails none."""
        first = None
        for name in names:
            rule = self.rules[name]
            if rule.take(judged, origin, may_remove and first is None):
                first = first or rule
        return first


def _finite(threshold: float | None) -> float | None:
    """Return a threshold that floats can be compared with: a whole number in a file may be too large for that."""
    return threshold if threshold is None else min(threshold, GREATEST)


def _measured(document: Document) -> Measured | None:
    blocks = list(filter(None, document.blocks))
    return Measured(blocks) if blocks else None


_JUDGED: dict[Step, tuple[str, Callable[[Document], Any]]] = {
    filter_text: ("text", _measured),
    filter_sentences: ("sentences", lambda document: document.sentences),
}
"""For each step that applies rules to whole documents, which rules these are and what they measure."""
