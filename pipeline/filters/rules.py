"""The table of rules, and --filters: which of them a job applies, with which thresholds.

--filters gopher,fineweb          sets of rules, as their papers have them
--filters rules.toml              sets, and single rules with other thresholds:

    sets = ["gopher", "c4"]

    [rules]
    min_words = 20                another threshold
    unfinished_lines = false      not this rule of the set
    max_short_lines = true        a rule of another set, with its own threshold

A new rule is a row of RULES, whose function measures a document or a line, a row of DEFINITIONS, and a row with the
same words in docs/filters.md. It belongs to no published set: its `set` is another name, such as "own", and only a file
that names the rule turns it on. Names and thresholds are options of a job, so a new rule needs nothing else. After a
change of what an older rule measures, raise PIECES_VERSION in pipeline/commit/staging.py, so that no job continues with
runs that were made without the change.

The thresholds and definitions are those of PAPERS, and of the published code where a paper is silent: of C4 that is
c4_utils.py of TensorFlow Datasets. fineweb is what FineWeb adds to the rules of Gopher and C4.
Differences from datatrove's filters of the same names are in docs/filters.md.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

from pipeline.filters.measures import Measured, duplicates, words_of
from schemas import storage
from schemas.errors import UsageError, nearest_name

PAPERS = {
    "c4": "Raffel et al., arXiv:1910.10683, section 2.2, and its published code",
    "gopher": "Rae et al., arXiv:2112.11446, appendix A.1",
    "fineweb": "Penedo et al., arXiv:2406.17557, section 3.6",
}
"""The paper of each published set."""

SETS = tuple(PAPERS)
"""The published sets, which --filters takes by their names."""

Thresholds = dict[str, float | None]
"""The rules of a job by their names, in the order of RULES, with the threshold of each; None for one without."""

Needs = Literal["", "spaces", "marks", "English"]

LAST_MARKS = (
    ".", "?", "!", "\u2026", "\u3002", "\uff1f", "\uff01", "\uff0e", "\u061f", "\u06d4", "\u0964", "\u0965", "\u0589",
    "\u1362", "\u1362\u1361", "\u1367", "\u104a", "\u104b", "\u17d4", "\u17d5", "\u0f0d",
)  # fmt: skip
"""Marks that end sentences, in the scripts of most text."""

_QUOTES = ('"', "'", "\u201c", "\u201d", "\u2018", "\u2019", "\u00bb", "\u203a", "\u300d", "\u300f", "\uff02")
_STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_POLICY = re.compile("terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies", re.IGNORECASE)
_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_SHORT_LINE = 30  # characters
_ELLIPSES = ("...", "\u2026")
_BULLETS = ("\u2022", "-")


class Rule(NamedTuple):
    """A rule that a document or a line must keep.

    set: a name of SETS, or another one. The ledger has it.
    judges: what `measure` gets. "line": a line as a string. "text": a `Measured`. "sentences": a list of sentences.
    threshold: the least or most allowed value of `measure`; None: a rule without a number, whose measure must be 0.
    is_least: whether the threshold is the least value, not the most.
    needs: what the text must have for the rule to make sense: words with spaces between, sentences with a mark at the
        end, or English words.
    edit: of a rule for lines, what is done to every line before any rule judges it.
    """

    set: str
    judges: Literal["line", "text", "sentences"]
    measure: Callable[[Any], float]
    threshold: float | None = None
    is_least: bool = False
    needs: Needs = ""
    edit: Callable[[str], str] | None = None

    def fails(self, value: float, threshold: float | None) -> bool:
        """Return whether a measured value breaks the rule."""
        if threshold is None:
            return value > 0
        return value < threshold if self.is_least else value > threshold


def _without_citations(line: str) -> str:
    """Return a line without the marks of Wikipedia's citations: "[12]", "[edit]", "[citation needed]"."""
    return _CITATION.sub("", line).rstrip() if "[" in line else line


def _has_no_end(line: str) -> bool:
    return not line.endswith((*LAST_MARKS, *_QUOTES)) or line.endswith(_ELLIPSES)


def _mean_word(text: Measured) -> float:
    return text.share_of_words(sum(map(len, text.words)))


def _share_with_letters(text: Measured) -> float:
    return text.share_of_words(sum(word.isalpha() or any(map(str.isalpha, word)) for word in text.words))


# Gopher's table A1.
_TOP_NGRAMS = {2: 0.2, 3: 0.18, 4: 0.16}
_DUPLICATE_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}

RULES: dict[str, Rule] = {
    # Lines that fail are removed.
    "max_line_word_length": Rule(
        "c4", "line", lambda line: max(map(len, words_of(line)), default=0), 1000, needs="spaces"
    ),
    "unfinished_lines": Rule("c4", "line", _has_no_end, needs="marks", edit=_without_citations),
    "min_line_words": Rule("c4", "line", lambda line: len(words_of(line)), 3, is_least=True, needs="spaces"),
    "javascript_lines": Rule("c4", "line", lambda line: "javascript" in line.lower()),
    "policy_lines": Rule("c4", "line", lambda line: _POLICY.search(line) is not None),
    # Documents that fail are dropped.
    "lorem_ipsum": Rule("c4", "text", lambda doc: doc.text.lower().count("lorem ipsum")),
    "curly_brackets": Rule("c4", "text", lambda doc: doc.text.count("{")),
    "min_words": Rule("gopher", "text", lambda doc: len(doc.words), 50, is_least=True, needs="spaces"),
    "max_words": Rule("gopher", "text", lambda doc: len(doc.words), 100_000, needs="spaces"),
    "min_mean_word_length": Rule("gopher", "text", _mean_word, 3, is_least=True, needs="spaces"),
    "max_mean_word_length": Rule("gopher", "text", _mean_word, 10, needs="spaces"),
    "max_hashes_per_word": Rule(
        "gopher", "text", lambda doc: doc.share_of_words(doc.text.count("#")), 0.1, needs="spaces"
    ),
    "max_ellipses_per_word": Rule(
        "gopher", "text", lambda doc: doc.share_of_words(sum(map(doc.text.count, _ELLIPSES))), 0.1, needs="spaces"
    ),
    "max_bullet_lines": Rule(
        "gopher",
        "text",
        lambda doc: doc.share_of_lines(line.lstrip().startswith(_BULLETS) for line in doc.lines),
        0.9,
    ),
    "max_ellipsis_lines": Rule(
        "gopher",
        "text",
        lambda doc: doc.share_of_lines(line.rstrip().endswith(_ELLIPSES) for line in doc.lines),
        0.3,
    ),
    "min_alphabetic_words": Rule("gopher", "text", _share_with_letters, 0.8, is_least=True, needs="spaces"),
    "min_stop_words": Rule(
        "gopher", "text", lambda doc: len(_STOP_WORDS.intersection(doc.words)), 2, is_least=True, needs="English"
    ),
    "max_duplicate_paragraphs": Rule(
        "gopher", "text", lambda doc: duplicates(doc.blocks)[0] / max(1, len(doc.blocks)), 0.3
    ),
    "max_duplicate_paragraph_characters": Rule(
        "gopher", "text", lambda doc: doc.share_of_text(duplicates(doc.blocks)[1]), 0.2
    ),
    "max_duplicate_lines": Rule("gopher", "text", lambda doc: duplicates(doc.lines)[0] / max(1, len(doc.lines)), 0.3),
    "max_duplicate_line_characters": Rule(
        "gopher", "text", lambda doc: doc.share_of_text(duplicates(doc.lines)[1]), 0.2
    ),
    **{
        f"max_top_{n}_gram": Rule("gopher", "text", partial(Measured.top_ngram, n=n), most, needs="spaces")
        for n, most in _TOP_NGRAMS.items()
    },
    **{
        f"max_duplicate_{n}_grams": Rule(
            "gopher", "text", partial(Measured.duplicate_ngrams, n=n), most, needs="spaces"
        )
        for n, most in _DUPLICATE_NGRAMS.items()
    },
    "min_punctuated_lines": Rule(
        "fineweb",
        "text",
        lambda doc: doc.share_of_lines(line.endswith(LAST_MARKS) for line in doc.lines),
        0.12,
        is_least=True,
        needs="marks",
    ),
    "max_short_lines": Rule(
        "fineweb", "text", lambda doc: doc.share_of_lines(len(line) <= _SHORT_LINE for line in doc.lines), 0.67
    ),
    "max_repeated_line_characters": Rule(
        "fineweb", "text", lambda doc: duplicates(doc.lines)[1] / max(1, sum(map(len, doc.lines))), 0.01
    ),
    "max_line_ends_per_word": Rule(
        "fineweb", "text", lambda doc: doc.share_of_words(len(doc.lines) - 1), 0.3, needs="spaces"
    ),
    "min_sentences": Rule("c4", "sentences", len, 5, is_least=True),
}
"""The rules in the order in which they apply."""

_TOP_WORDS = "share of characters in the most frequent {} words that occur twice or more"
_DUPLICATE_WORDS = "share of characters in {} words that occurred before"
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

DEFINITIONS = {
    "max_line_word_length": "a line's longest word, in characters",
    "unfinished_lines": "a line that does not end with ., ?, !, the like of other scripts, or a closing quotation "
    "mark, or ends with an ellipsis; marks such as [12] and [edit] are removed from all lines before",
    "min_line_words": "words of a line",
    "javascript_lines": "a line that names JavaScript",
    "policy_lines": "a line about cookies, terms of use or privacy policies",
    "lorem_ipsum": "how often a document has this placeholder",
    "curly_brackets": "how often a document has {",
    "min_words": "words of a document",
    "max_words": "words of a document",
    "min_mean_word_length": "mean characters of a word",
    "max_mean_word_length": "mean characters of a word",
    "max_hashes_per_word": "# for each word",
    "max_ellipses_per_word": "... and \u2026 for each word",
    "max_bullet_lines": "share of lines that begin with \u2022 or -",
    "max_ellipsis_lines": "share of lines that end with an ellipsis",
    "min_alphabetic_words": "share of words with a letter",
    "min_stop_words": "how many of the, be, to, of, and, that, have, with occur",
    "max_duplicate_paragraphs": "share of paragraphs that occurred before",
    "max_duplicate_paragraph_characters": "share of characters in paragraphs that occurred before",
    "max_duplicate_lines": "share of lines that occurred before",
    "max_duplicate_line_characters": "share of characters in lines that occurred before, line ends included",
    **{f"max_top_{n}_gram": _TOP_WORDS.format(_NUMBERS[n - 2]) for n in range(2, 5)},
    **{f"max_duplicate_{n}_grams": _DUPLICATE_WORDS.format(_NUMBERS[n - 2]) for n in range(5, 11)},
    "min_punctuated_lines": "share of lines that end with a full stop, question or exclamation mark, of many scripts, "
    "or an ellipsis",
    "max_short_lines": "share of lines of at most 30 characters",
    "max_repeated_line_characters": "share of characters in lines that occurred before, line ends left out",
    "max_line_ends_per_word": "line ends for each word",
    "min_sentences": "sentences of a document, as shard splits them",
}
"""What each rule measures, by its name."""


# ---- --filters ----

# Codes of languages that put no spaces between words, and no mark at the end of sentences.
_WITHOUT_SPACES = ("bo", "dz", "ja", "km", "lo", "my", "th", "zh")
_WITHOUT_MARKS = ("lo", "th")


def chosen_rules(given: str, language: str | None, sentence_rules: str = "") -> tuple[Thresholds, list[str]]:
    """Return the rules that `--filters` names, and the names of those in its sets that do not fit the language.

    language: its code. sentence_rules: the code of the language whose rules split its sentences, if it is another one.
    With language None all are chosen, because each document will meet those that fit it. Otherwise rules that a file
    names itself apply to any language. Raises UsageError for an unknown set or rule, a threshold of the wrong type, or
    a file that cannot be read as TOML.
    """
    is_file = given.lower().endswith(".toml")
    names = list(filter(None, map(str.strip, given.lower().split(","))))
    sets, rules = _read(given) if is_file else (_sets(names, "--filters"), {})

    chosen: Thresholds = {}
    unfit: list[str] = []
    for name, rule in RULES.items():
        if name in rules:
            if rules[name] is not False:
                chosen[name] = rule.threshold if rules[name] is True else rules[name]
        elif rule.set in sets:
            if language is None or fits(rule.needs, language, sentence_rules):
                chosen[name] = rule.threshold
            else:
                unfit.append(name)
    if not chosen:
        raise UsageError(f"--filters {given} leaves no rule for --language {language or 'auto'}. Leave it out.")
    return chosen, unfit


def fits(needs: str, language: str, sentence_rules: str = "") -> bool:
    """Return whether a rule with these needs can judge text in a language."""
    if needs == "English":
        return language == "en"
    without = {"spaces": _WITHOUT_SPACES, "marks": _WITHOUT_MARKS}.get(needs, ())
    return not {language, sentence_rules} & set(without)


def _sets(names: list[Any], where: str) -> list[str]:
    """Return names of sets, which `where` has. Raises UsageError for an unknown one."""
    for name in names:
        if name not in SETS:
            hint = nearest_name(str(name), SETS)
            raise UsageError(
                f"{where}: {name!r} is not a set of rules.{hint} Give some of {', '.join(SETS)}, with commas between "
                "them, or a .toml file that names rules (docs/filters.md)."
            )
    return names


def _read(path: str) -> tuple[list[str], dict[str, Any]]:
    shown = storage.printable(path)
    try:
        content = tomllib.loads(storage.read_named("--filters", path).decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{shown} is not TOML: {error}. docs/filters.md has an example.") from error

    sets = content.pop("sets", [])
    rules = content.pop("rules", {})
    if content or not isinstance(sets, list) or not isinstance(rules, dict):
        names = ", ".join(content) or "a value of another type"
        raise UsageError(f"{shown} has {names}. Expected: sets = [...], and a table [rules] of names and thresholds.")

    for name, value in rules.items():
        _check(shown, name, value)
    return _sets(sets, shown), rules


def _check(shown: str, name: str, value: Any) -> None:
    """Raise UsageError unless a rule exists and may have this value."""
    if name not in RULES:
        raise UsageError(f"{shown}: there is no rule {name!r}.{nearest_name(name, RULES)} docs/filters.md lists them.")
    if isinstance(value, bool):
        return
    usual = RULES[name].threshold
    if usual is None:
        raise UsageError(f"{shown}: {name} = {value!r}: this rule has no threshold. Give true or false.")
    most = 1 if usual < 1 else float("inf")
    if not isinstance(value, int | float) or not 0 <= value <= most or value == float("inf"):
        expected = "a share from 0 to 1" if most == 1 else "a number from 0 up"
        raise UsageError(f"{shown}: {name} = {value!r}: expected {expected}, or false for no such rule.")
