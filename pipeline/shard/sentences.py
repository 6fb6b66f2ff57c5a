"""Splits a clean document into sentences, each on one line with single spaces.

Texts come with hard-wrapped lines (books, mail, documentation), with one paragraph per line (the web, Wikipedia), or
with one sentence per line (subtitles, poems, lists). `sentencex` first joins wrapped lines (wrapped_lines.py). Any
other line break ends a sentence, as after a heading. `newline` trusts the corpus: every line is one sentence.

Sentences end by the rules of `sentencex`, with corrections (docs/decisions.md):

- No sentence ends within quotation marks or brackets. A mark without a partner (6", x < 5, :-( and so on) would pair
  with the next one, however many sentences stand between. So a sentence in which others may lie is cut once more
  without the marks that have no partner within MAX_QUOTED characters.
- A period after an ordinal number or a title ends nothing ("Die 1. Bundesliga", "M. Dupont").
- English abbreviations are those of English alone (Swedish "Jag vet det. Sedan gick han." is two sentences).
- Full stops of Chinese, Japanese, Khmer, Tibetan and Sinhala end a sentence, whatever comes next.
- What has no letter belongs to the sentence before it, as the number of a verse does; so does what follows a Burmese
  comma, and a letter right behind an Armenian mark.

All this only chooses where to cut: the parts are those of the text.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Literal

import sentencex

from pipeline.filters.measures import WORD_DIVIDER
from pipeline.shard.languages import known_language
from pipeline.shard.wrapped_lines import paragraphs

Splitter = Literal["sentencex", "newline"]

_SPACES = re.compile("  +")  # four times as fast as " {2,}": Python searches for two spaces, not for one

MAX_QUOTED = 400
"""Characters within quotation marks or brackets that stay together. A longer quotation is cut into its sentences."""

_MAX_NESTED = 8  # marks that are open at the same time

_LONG_PARAGRAPH = 20_000
"""Characters above which marks are paired first: sentencex takes quadratic time for marks that are never closed."""

# Three patterns, because Python searches for one character five times as fast as for any of three.
_HIDDEN_ENDS = tuple((end, re.compile(rf"[{end}](?= (?!\0))")) for end in ".?!")

_MARK = re.compile(
    r"``|''|[:;=][-^']?[()\[\]{}<>]"  # LaTeX's quotes and emoticons are no pairs
    r"|[\"'`\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb\u2039\u203a()\uff08\uff09\[\]{}<>]"
)
_CLOSED_BY = {
    '"': '"',
    "'": "'",
    "`": "`'",
    "\u201c": "\u201d",
    "\u201e": "\u201c\u201d",
    "\u2018": "\u2019",
    "\u00ab": "\u00bb",
    "\u2039": "\u203a",
    "(": ")",
    "\uff08": "\uff09",
    "[": "]",
    "{": "}",
}
"""The marks that close each opening one. < and > are no quotation marks."""

_STRAIGHT = "\"'`"
"""Marks that open only before a word, and close only behind one."""

_BEFORE_CLOSING = ".!?\u2026\u201d"
_PLAIN = "*"  # stands for a mark without a partner
_PLAIN_AFTER_END = "\u201d"  # after a full stop, because sentencex leaves it with the sentence before

_OPEN_AS_THEY_CLOSE = ("fi", "sv")  # ”so”, in these languages
_SWEDISH_OPENING = re.compile(r"(?<![^\s(])\u201d(?=\S)")

_SMALL_WORD_BEFORE_CAPITAL = re.compile(r"\b([^\W\d_]{2,})(?=\. [\"'(\u201c\u201d\u2019\u00ab]?([^\W\d_]))")
_SHORT = ("ca", "cf", "ed", "etc", "fig", "nr", "pp", "st", "tel", "vol", "vs")
"""Abbreviations in lower case that stand before names and numbers in many languages."""

_TITLES = "Dr|Prof"
_ORDINAL = re.compile(rf"(?:^|[\s(])(?:\d{{1,2}}|{_TITLES})\. ?$")
_WRITE_ORDINALS_WITH_A_PERIOD = (
    "bs cs da de et eu fi fo gsw hr hsb hu is lb lt lv nb nn no pl sk sl sr tr"  # codes of languages
)
_NO_END = {
    **dict.fromkeys(_WRITE_ORDINALS_WITH_A_PERIOD.split(), _ORDINAL),
    "fr": re.compile(rf"(?:^|[\s(\u00ab])(?:MM?|Mmes?|Mlles?|Mgr|Me|Ste?|{_TITLES})\. ?$"),
    "vi": re.compile(rf"(?:^|\s)(?:TP|Tp|TS|ThS|GS|PGS|BS|{_TITLES})\. ?$"),
}
"""What a part ends with if its period ends no sentence, by language."""

# A full stop, other end marks ("？！", "。……"), then closing quotes and brackets; but not where a comma or colon
# follows, because the sentence continues there.
_FULL_STOP = re.compile("(?:[。！？][。！？!?…]*|[។៕༎෴]+|།(?:[ ]?།)*)[”’」』）】》〉]*(?![，、；：,;:])")
_FULL_STOPS = "。！？។៕།༎෴"

_BURMESE_COMMAS = ("\u104a", "\u104f")  # and the mark of the genitive, at which sentencex also cuts
_ARMENIAN_MARKS = "\u055b\u055c\u055e"  # of stress, exclamation and question, which stand within words


def split_sentences(text: str, language: str, splitter: Splitter, counts: Counter[str] | None = None) -> list[str]:
    """Return the sentences of a clean document, in order, without empty ones, their words separated by single spaces.

    counts: gets the number of lines that were joined to the line before.
    Example: `split_sentences("One. Two\nthree.", "en", "sentencex")` -> `["One.", "Two three."]`.
    """
    return sentences_of(lines_of(text, splitter, counts), language, splitter)


def lines_of(text: str, splitter: Splitter, counts: Counter[str] | None = None, document: str = "") -> list[str]:
    """Return the lines of a clean document, or of a part of it: paragraphs, or with "newline" lines as they are."""
    return text.split("\n") if splitter == "newline" else paragraphs(text, counts, document)


def sentences_of(lines: list[str], language: str, splitter: Splitter) -> list[str]:
    """Return the sentences in lines from `lines_of`."""
    if splitter == "newline":
        return list(filter(None, (" ".join(line.split()) for line in lines)))

    # A blank line ends a sentence in every language.
    joined = "\n\n".join(lines)
    if "  " in joined:
        joined = _SPACES.sub(" ", joined)
    return list(filter(None, map(str.strip, cut_into_sentences(joined, language))))


# ---- Where sentences end ----


def cut_into_sentences(text: str, language: str) -> list[str]:
    """Return the parts of a text, each one sentence with the white space behind it, or the space between paragraphs.

    text: paragraphs separated by a blank line.
    """
    marked = _marked(text, language)
    if len(text) > _LONG_PARAGRAPH and _has_long_paragraph(text):
        marked = with_paired_marks(marked)

    parts = _cut(text, marked, language)
    if ". " in text or "? " in text or "! " in text:
        # From the last, so that the places of the others stay.
        for place in reversed(_places_of_hidden_ends(parts)):
            plain = with_paired_marks(_marked(parts[place], language))
            if plain != parts[place]:
                parts[place : place + 1] = _cut(parts[place], plain, language)
    if language in _NO_END:
        parts = list(_joined(parts, _NO_END[language]))

    if not text.isascii() and any(mark in text for mark in _FULL_STOPS):
        parts = cut_after_full_stops(parts)
    return _whole(parts)


def _marked(text: str, language: str) -> str:
    """Return a text of the same length that sentencex cuts by the rules of its language."""
    if _inherits_english(language) and ". " in text:
        text = _SMALL_WORD_BEFORE_CAPITAL.sub(_without_abbreviation, text)
    if language in _OPEN_AS_THEY_CLOSE and "\u201c" not in text:
        text = _SWEDISH_OPENING.sub("\u201c", text)
    return text


@cache
def _inherits_english(language: str) -> bool:
    return language != "en" and known_language(language).rules == "en"


def _without_abbreviation(found: re.Match[str]) -> str:
    """Return letters that abbreviate nothing for a word in lower case whose period ends a sentence."""
    word, next_letter = found[1], found[2]
    ends = word.islower() and next_letter.isupper() and word not in _SHORT
    return "x" * len(word) if ends else word


def _has_long_paragraph(text: str) -> bool:
    place = 0
    while place >= 0 and place + _LONG_PARAGRAPH < len(text):
        place = text.rfind("\n\n", place + 1, place + _LONG_PARAGRAPH)
    return place < 0


def _cut(text: str, marked: str, language: str) -> list[str]:
    """Cut a text where sentencex ends the sentences of `marked`, a text of the same length and with the same spaces."""
    found: list[str] = sentencex.segment(known_language(language).rules, marked)  # type: ignore[attr-defined]
    if marked is text:
        return found

    # Between chunks of a long text, sentencex leaves out the space between paragraphs.
    parts, place = [], 0
    for part in found:
        while marked[place] == "\n" != part[0]:
            place += 1
        parts.append(text[place : place + len(part)])
        place += len(part)
    return parts


def _places_of_hidden_ends(parts: list[str]) -> list[int]:
    """Return the indices of parts within which a sentence may end, as after an abbreviation or in quotation marks."""
    # One search over all parts takes less time than one in each. \0 is not in the text.
    joined = "\0".join(parts)
    ends = [found.start() for end, rule in _HIDDEN_ENDS if end in joined for found in rule.finditer(joined)]
    if not ends:
        return []

    places: dict[int, None] = {}
    place = 0
    for begin, end in itertools.pairwise([0, *sorted(ends)]):
        place += joined.count("\0", begin, end)
        places[place] = None
    return list(places)


def _whole(parts: list[str]) -> list[str]:
    """Join parts that are no sentence to the one before them in their paragraph, and a word divider at their beginning.

    Those are parts without a letter (a last quotation mark, "|| 12 ||" after a verse), and what follows a mark that
    ends none.
    """
    whole: list[str] = []
    before = "\n"
    for part in filter(None, parts):
        starts, begins = part.lstrip(WORD_DIVIDER), part[0].isalpha()
        if before[0] == "\n" or part[0] == "\n":  # between paragraphs
            whole.append(part)
        elif before.rstrip().endswith(_BURMESE_COMMAS) or (begins and before[-1] in _ARMENIAN_MARKS):
            whole[-1] += part
        elif begins or any(map(str.isalpha, part)):
            whole[-1] += part[: len(part) - len(starts)]
            whole.append(starts)
        else:
            whole[-1] += part
        before = whole[-1]
    return whole


def with_paired_marks(text: str) -> str:
    """Return a text of the same length in which marks without a partner within MAX_QUOTED characters are none."""
    changed: dict[int, str] = {}  # characters by place
    waiting: list[int] = []  # places of opening marks

    for found in _MARK.finditer(text):
        place = found.end() - 1
        while waiting and (place - waiting[0] > MAX_QUOTED or len(waiting) > _MAX_NESTED):
            _make_plain(text, changed, waiting.pop(0))

        kind = _kind_of_mark(text, place, len(found[0]), waiting)
        if kind == "opens":
            waiting.append(place)
        elif kind == "closes":
            while text[place] not in _CLOSED_BY[text[waiting[-1]]]:
                _make_plain(text, changed, waiting.pop())
            opener = waiting.pop()
            if text[place] == '"':
                changed[opener], changed[place] = "\u201c\u201d"
        elif kind == "plain":
            _make_plain(text, changed, place)

    for place in waiting:
        _make_plain(text, changed, place)
    if not changed:
        return text

    characters = list(text)
    for place, character in changed.items():
        characters[place] = character
    return "".join(characters)


def _kind_of_mark(
    text: str, place: int, length: int, waiting: list[int]
) -> Literal["opens", "closes", "plain", "word"]:
    """Return what a mark is, given the opening marks that wait for a partner."""
    mark, before, after = text[place], text[place - 1 : place], text[place + 1 : place + 2]
    is_straight = mark in _STRAIGHT
    if length > 1:
        return "word" if is_straight else "plain"
    if mark in "'\u2019" and before.isalnum() and after.isalnum():
        return "word"

    can_close = not (is_straight and before.isspace()) and not (mark in "\"'\u2019" and after.isalnum())
    if waiting and can_close and any(mark in _CLOSED_BY[text[opener]] for opener in waiting):
        return "closes"

    can_open = mark in _CLOSED_BY and not (is_straight and (before.isalnum() or not after.strip()))
    return "opens" if can_open else "plain"


def _make_plain(text: str, changed: dict[int, str], place: int) -> None:
    before = changed.get(place - 1, text[place - 1 : place])
    follows_end = before != "" and before in _BEFORE_CLOSING
    changed[place] = _PLAIN_AFTER_END if follows_end else _PLAIN


def _joined(parts: Iterable[str], no_end: re.Pattern[str]) -> Iterator[str]:
    """Join each part that ends with an ordinal number or a title to the next one of its paragraph."""
    start = ""
    for part in parts:
        if part.startswith("\n"):  # between paragraphs
            yield from filter(None, (start, part))
            start = ""
        elif no_end.search(part):
            start += part
        else:
            yield start + part
            start = ""
    if start:
        yield start


def cut_after_full_stops(parts: list[str]) -> list[str]:
    """Cut after every full stop of Chinese and some other scripts, with its closing quotes, unless a comma follows.

    These marks end a sentence in any language, whatever comes next; sentencex alone would not cut before a digit or a
    Latin letter. Example: `["到医院。108路"]` -> `["到医院。", "108路"]`.
    """
    # One search covers all parts. No match crosses the end of one, because \0 is not in the text.
    lines = "\0".join(parts)
    ends = []
    for match in _FULL_STOP.finditer(lines):
        end = match.end()
        # A straight quotation mark closes if it is the second one.
        if lines[end : end + 1] == '"' and lines.count('"', lines.rfind("\0", 0, end) + 1, end) % 2 == 1:
            end += 1
        ends.append(end)

    cut = [lines[start:end] for start, end in itertools.pairwise([0, *ends, len(lines)])]
    return "\0".join(cut).split("\0")
