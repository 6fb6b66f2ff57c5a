"""Tries the rules of --filters on documents: what each rule measures and removes, with examples near its threshold.

Documents take the steps of documents.py, as in the job. Where a step applies rules, each of them measures what the step
gets, whether or not an earlier rule has removed it: a document that a rule drops takes the later steps all the same. So
the trial also knows what each rule would remove without the others, except lines: rules for documents never see removed
lines.

Bytes are those of the text, in UTF-8. Those of a document are divided: those of its removed lines count for the rules
that removed these, and the rest for the rule that dropped the document, or for the kept ones.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pipeline.filters.measures import Measured
from pipeline.filters.rules import RULES, Thresholds
from pipeline.shard.documents import STEPS, Document, Drop, ReadOptions

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
        self._options = replace(options, judge=self._first_failed)
        self.rules = {name: Tried(name, _finite(threshold)) for name, threshold in options.filters.items()}
        self.all = Share()
        self.kept = Share()
        self.untouched = Share()
        self.left_out: defaultdict[str, Share] = defaultdict(Share)
        self.not_documents: Counter[str] = Counter()
        self.changes: Counter[str] = Counter()

        # Of the document that takes its steps: where it is from, why it is left out, and its removed lines.
        self._origin = Origin("", "")
        self._reason = ""
        self._lost = Share()

    def leave_out(self, reason: str, size: int) -> None:
        """Count a bad record of this many bytes."""
        self.all.add(size)
        self.left_out[reason].add(size)

    def add(self, text: str, origin: Origin) -> None:
        """Take a document through all steps."""
        size = len(text.encode(errors="replace"))
        self.all.add(size)
        document = Document(text, origin.source, self.changes, self._options.language)
        self._origin, self._reason, self._lost = origin, "", Share()

        for step in STEPS:
            result = step(document, self._options)
            if isinstance(result, Drop):
                self._reason = self._reason or result.reason
                document.changes = Counter()  # of what is left out already
                if result.reason.rpartition(" filter: ")[2] not in self.rules:
                    break
            else:
                document = result

        left = self.left_out[self._reason] if self._reason else self.kept
        left.add(max(0, size - self._lost.bytes))
        if not self._reason and not self._lost.count:
            self.untouched.add(size)

    def _first_failed(self, names: list[str], judged: Any, thresholds: Thresholds) -> str | None:
        """Let rules measure a line or a document, as `ReadOptions.judge`."""
        first = None
        for name in names:
            if self.rules[name].take(judged, self._origin, may_remove=not self._reason and first is None):
                first = first or name

        if first is not None and isinstance(judged, str):  # a line, which is removed
            size = len(judged.encode())
            self.rules[first].removed_bytes += size
            self._lost.add(size)
        return first


def _finite(threshold: float | None) -> float | None:
    """Return a threshold that floats can be compared with: a whole number in a file may be too large for that."""
    return threshold if threshold is None else min(threshold, GREATEST)
