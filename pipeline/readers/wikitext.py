"""Turns wikitext, the markup of MediaWiki, into paragraphs of plain text.

The rules are those of MediaWiki's preprocessor and parser (mediawiki.org/wiki/Preprocessor_ABNF, Help:Formatting,
Help:Links), applied in five steps:

    opaque      comments, and tags whose content is no wikitext: <nowiki> stays as it is, <ref>, <math> and others go
    nested      templates and links become what a reader sees of them; a closing mark belongs to the last open one
    inline      HTML tags, quotes, links to other sites, switches such as __NOTOC__
    lines       tables go, items of lists stay as lines, lines of a paragraph are joined
    sections    headings stay if text follows

Templates are not expanded, because they are other pages: those of wiki_nested.py show arguments, the others go. Text
after a mark that is never closed stays, without the mark; an unclosed comment is dropped, and an unclosed table up to
the next heading.

Every step takes linear time whatever the text is; only links within links are read once for each level, up to
MAX_DEPTH. Parsers that try several readings of unclosed marks, as mwparserfromhell does, take quadratic time.

Control characters that XML forbids mark places between the steps.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator

from pipeline.readers.wiki_nested import END_OF_LINK, LINE_OF_LINK, shown_of_link, shown_of_template

MAX_DEPTH = 100
"""Maximum templates and links that are open at one place. MediaWiki expands 40 templates within each other."""

_NOTHING = "\x03"  # <nowiki/>, which keeps marks apart
_GAP = "\x04"  # something was left out after a space or a bracket


class NestingError(ValueError):
    """More than MAX_DEPTH templates and links are open at one place."""


def plain_text(wikitext: str) -> str:
    """Return the text of a page, with a blank line between paragraphs; empty if nothing is left of it.

    Raises NestingError.
    """
    text = without_opaque(wikitext)
    text = _without_templates(text)
    text = _inline(text)
    return "\n\n".join(_with_used_headings(_blocks(_lines_without_tables(text))))


# ---- Opaque ----

_DROPPED_TAGS = (
    "categorytree|ce|chem|gallery|graph|hiero|imagemap|includeonly|indicator|inputbox|mapframe|maplink|math|pre|quiz|"
    "ref|references|score|section|source|syntaxhighlight|table|templatedata|templatestyles|timeline"
)
_OPAQUE = re.compile(rf"<(?:!--|(nowiki|{_DROPPED_TAGS})(?=[\s/>])([^<>]*)>)", re.IGNORECASE)
_CLOSED_BY = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in ("nowiki", *_DROPPED_TAGS.split("|"))}
_AS_ENTITIES = {ord(mark): f"&#{ord(mark)};" for mark in "[]{}<>'|=*:_-"}


def without_opaque(text: str) -> str:
    """Return the text without comments and tags whose content is dropped, and with <nowiki> as character references."""
    parts: list[str] = []
    unclosed: set[str] = set()
    end = 0

    while found := _OPAQUE.search(text, end):
        start = found.start()
        parts.append(text[end:start])
        if found[1] is None:
            end = _end_of_comment(text, start)
            continue

        name, attributes = found[1].lower(), found[2]
        content = ""
        end = found.end()
        if not attributes.endswith("/") and name not in unclosed:
            closing = _CLOSED_BY[name].search(text, end)
            if closing is None:
                unclosed.add(name)  # not searched for again, which would take quadratic time
            else:
                content = text[end : closing.start()]
                end = closing.end()

        is_shown = name == "nowiki" or (name in ("syntaxhighlight", "source") and "inline" in attributes)
        parts.append(_NOTHING + content.translate(_AS_ENTITIES) if is_shown else _gap_after(text[start - 1 : start]))

    parts.append(text[end:])
    return "".join(parts)


def _end_of_comment(text: str, start: int) -> int:
    """Return where a comment ends. With one that has a line for itself, the line goes too."""
    end = text.find("-->", start)
    if end < 0:
        return len(text)

    end += len("-->")
    begins_line = start == 0 or text[start - 1] == "\n"
    return end + 1 if begins_line and text.startswith("\n", end) else end


def _gap_after(before: str) -> str:
    if before.endswith("'"):
        return _NOTHING  # so that the quotes of ''{{x}}'' stay apart
    return _GAP if before.endswith((" ", "(")) else ""


# ---- Nested ----

# Four patterns, each with a fixed beginning: Python searches for one that begins with any of four much longer.
_NESTING = tuple(re.compile(kind) for kind in (r"\{\{+", r"\}\}+", r"\[\[", r"\]\]"))

# [[target]] and [[target|label]] with no mark in them, and no : or /, which shown_of_link looks at. The group is what
# is shown, so that `split` leaves only that of each: most links are read without a line of Python.
_TARGET = r"[^\[\]{}<>|:/\n]"
_PLAIN_LINK = re.compile(rf"\[\[(?<!\[\[\[)(?:{_TARGET}*+\||(?!\s)(?={_TARGET}++(?<!\s)\]\]))([^\[\]{{}}]++)\]\]")


def _without_templates(text: str) -> str:
    """Return the text without templates and parameters, and with links as what is shown of them.

    As in MediaWiki's preprocessor, marks that close are paired with the last open one or with none, and three braces,
    a parameter, come before two, a template.
    """
    text = "".join(_PLAIN_LINK.split(text))
    marks = sorted(found.span() for kind in _NESTING for found in kind.finditer(text))
    if not marks:
        return text

    kept = [text[: marks[0][0]]]
    opened: list[list[int]] = []  # the number of open braces, or 0 for a link, and the length of `kept` there

    for (first, end), (following, _) in itertools.pairwise([*marks, (len(text), 0)]):
        mark = text[first]
        if mark in "[{":
            opened.append([end - first if mark == "{" else 0, len(kept)])
            if len(opened) > MAX_DEPTH:
                raise NestingError
        elif mark == "}":
            _close_braces(end - first, opened, kept)
        elif opened and opened[-1][0] == 0:
            _, start = opened.pop()
            kept[start:] = [shown_of_link("".join(kept[start:]))]
        kept.append(text[end:following])
    return "".join(kept)


def _close_braces(count: int, opened: list[list[int]], kept: list[str]) -> None:
    """Replace what stands between `count` closing braces and as many of the last open ones by what is shown of it."""
    while count >= 2 and opened and opened[-1][0] >= 2:
        braces, start = opened[-1]
        paired = min(3, count, braces)
        count -= paired
        shown = shown_of_template(kept[start:]) if paired == 2 else ""
        kept[start:] = [shown or _gap_after(kept[start - 1])]

        # What is shown, or the gap, lies within what is still open.
        opened[-1] = [braces - paired, start]
        if braces - paired < 2:
            opened.pop()


# ---- Inline ----

# Possessive, because a long address without its bracket would be divided in all ways.
_SITE_LINK = re.compile(r"\[(?:(?:https?|ftps?|news|ircs?)://|//|mailto:)[^\s\[\]<>\"]*+([^\[\]\n]*+)\]", re.IGNORECASE)
_QUOTES = re.compile("(''+)")
_FROM_QUOTES = re.compile("''[^\n]*+")
_SWITCH = re.compile(r"__([^\W\d_]{2,40})__")
_BLOCK_TAGS = "blockquote|br|caption|center|dd|div|dl|dt|h[1-6]|hr|li|ol|p|poem|table|td|th|tr|ul"
_INLINE_TAGS = (
    "abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|mark|noinclude|onlyinclude|q|rb|rp|rt|rtc|ruby|s|samp|"
    "small|span|strike|strong|sub|sup|time|tt|u|var|wbr"
)
_TAG = re.compile(rf"</?(?:({_BLOCK_TAGS})|{_INLINE_TAGS}|nowiki|{_DROPPED_TAGS})(?=[\s/>])[^<>]*>", re.IGNORECASE)
_VARIANTS = re.compile(r"-\{([^{}]*)\}-")
_HIDDEN_VARIANTS = frozenset("HT-")


def _inline(text: str) -> str:
    if "-{" in text:
        text = _VARIANTS.sub(lambda found: _first_variant(found[1]), text)
    if "<" in text:
        text = _TAG.sub(lambda found: "\n\n" if found[1] else "", text)
    if "''" in text:
        text = _FROM_QUOTES.sub(_without_quotes, text)
    text = _SITE_LINK.sub(lambda found: found[1].strip() or _GAP, text)
    if "__" in text:
        text = _SWITCH.sub(lambda found: "" if found[1] == found[1].upper() else found[0], text)
    if _NOTHING in text:
        text = text.replace(_NOTHING, "")
    return _without_gaps(text) if _GAP in text else text


def _without_quotes(found: re.Match[str]) -> str:
    """Return a line, from its first mark on, without the marks of italic (two apostrophes), bold (three) and both.

    As in MediaWiki's Parser::doQuotes, more apostrophes than five are text before the mark. So is one of three if a
    line would end both in italic and in bold: the French "l'''Iliade''" has an italic title after an elision.
    """
    line = found[0]
    if "''''" not in line:
        bold = line.count("'''")
        italic = line.count("''") - bold
        if bold % 2 == 0 or italic % 2 == 0:  # as in nearly all lines: the marks go, and nothing else
            return line.replace("'''", "").replace("''", "")

    parts = _QUOTES.split(line)
    marks: list[int] = []
    for place in range(1, len(parts), 2):
        count = len(parts[place])
        mark = 3 if count == 4 else min(count, 5)
        parts[place - 1] += "'" * (count - mark)
        marks.append(mark)

    bold, italic = (sum(mark in (count, 5) for mark in marks) for count in (3, 2))
    before_bold = [2 * number for number, mark in enumerate(marks) if mark == 3]
    if bold % 2 and italic % 2 and before_bold:
        start = found.start()
        before_line = found.string[max(0, start - 2) : start].rpartition("\n")[2]
        parts[
            min(before_bold, key=lambda place: _rank_of_elision(before_line + parts[0] if place == 0 else parts[place]))
        ] += "'"
    return "".join(parts[::2])


def _rank_of_elision(before: str) -> int:
    """Return how unlikely an apostrophe follows: least after a word of one letter, most after a space."""
    if before.endswith(" "):
        return 2
    return 0 if before[-2:-1] in ("", " ") else 1


def _first_variant(rules: str) -> str:
    """Return the first spelling in -{zh-hans:...; zh-hant:...}- (mediawiki.org/wiki/Writing_systems/Syntax)."""
    flags, bar, rest = rules.rpartition("|")
    if bar and not _HIDDEN_VARIANTS.isdisjoint(flags):
        return ""
    name, colon, _ = rest.partition(":")
    if not colon or not name.strip().startswith(("zh", "sr", "kk", "ku", "iu", "uz", "shi", "gan")):
        return rest
    return rest[len(name) + 1 :].partition(";")[0].strip()


def _without_gaps(text: str) -> str:
    """Return the text with the spaces, commas and brackets removed that belonged to what was left out."""
    first, *others = text.split(_GAP)
    kept = [first]
    before = first.rstrip(" ")  # what was kept last; not computed again as long as nothing is added

    for part in others:
        after = part.lstrip(" ")
        if before.endswith("("):
            after = after.lstrip(" ,;:")
            if after.startswith(")"):
                before = before[:-1].rstrip(" ")
                after = after[1:]
            if not after:  # the next gap is in the same brackets
                kept[-1] = before
                continue
        elif not after:
            continue
        elif after[0] not in ",.;:!?)\n":
            before = kept[-1]

        kept[-1] = before
        kept.append(after)
        before = after.rstrip(" ")
    return "".join(kept)


# ---- Lines ----

_TABLE, _END_OF_TABLE = "{|", "|}"
_RULE = "----"
_LIST_MARKS = "*#:;"
_ONLY_LINKS = re.compile(rf"(?:{LINE_OF_LINK}[^{LINE_OF_LINK}{END_OF_LINK}]*{END_OF_LINK}\s*)+")
_LINK_MARKS = {ord(LINE_OF_LINK): None, ord(END_OF_LINK): None}
_REFERENCE = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});")
_WORD = re.compile(r"[^\W_]")


def _lines_without_tables(text: str) -> Iterator[str]:
    """Yield the lines, with lines of tables as blank ones. Text behind the end of a table stays.

    A table without an end, such as one that a template closes, ends at the next heading.
    """
    lines = [line.strip() for line in text.split("\n")]
    if _TABLE not in text:
        yield from lines
        return

    unclosed: list[int] = []
    end_of_table: dict[int, int] = {}
    for number, line in enumerate(lines):
        if line.lstrip(":").startswith(_TABLE):
            unclosed.append(number)
        elif unclosed and line.startswith(_END_OF_TABLE):
            end_of_table[unclosed.pop()] = number

    starts = set(unclosed)
    end = -1
    is_unclosed = False
    for number, line in enumerate(lines):
        is_unclosed = (is_unclosed and not line.startswith("=")) or number in starts
        end = max(end, end_of_table.get(number, -1))
        if number == end and not is_unclosed:
            yield line.removeprefix(_END_OF_TABLE).lstrip()
        else:
            yield line if number > end and not is_unclosed else ""


def _blocks(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, items of lists and headings, with the level of a heading or 0.

    A row of a table without a beginning, which begins with |, is left out.
    """
    paragraph: list[str] = []
    for line in lines:
        if line.startswith(LINE_OF_LINK) and _ONLY_LINKS.fullmatch(line):
            continue

        first = line[:1]
        is_special = not first or first in "*#:;=|" or line.startswith(_RULE)
        if not is_special:
            paragraph.append(line)
            continue

        if paragraph:
            yield from _block(0, " ".join(paragraph))
            paragraph = []
        if first == "=":
            yield from _heading_or_text(line)
        elif first == "-":
            yield from _block(0, line.lstrip("-"))
        elif first == ";":
            for part in _term_and_definition(line):
                yield from _block(0, part.lstrip(_LIST_MARKS))
        elif first and first in _LIST_MARKS:
            yield from _block(0, line.lstrip(_LIST_MARKS))

    if paragraph:
        yield from _block(0, " ".join(paragraph))


def _heading_or_text(line: str) -> Iterator[tuple[int, str]]:
    """Yield a line that begins with =, a heading if it ends so too."""
    before = len(line) - len(line.lstrip("="))
    after = len(line) - len(line.rstrip("="))
    level = min(before, after, 6)
    if before == len(line) or level == 0:
        yield from _block(0, line)
    else:
        yield from _block(level, line[level : len(line) - level])


def _term_and_definition(line: str) -> tuple[str, ...]:
    for colon in (" : ", ": ", " :"):
        term, found, definition = line.partition(colon)
        if found:
            return term, definition
    return (line,)


def _block(level: int, text: str) -> Iterator[tuple[int, str]]:
    """Yield the text with its character references as characters, unless it has no letter or digit."""
    text = text.translate(_LINK_MARKS) if LINE_OF_LINK in text else text
    if "&" in text:
        text = _REFERENCE.sub(lambda found: html.unescape(found[0]), text)
    text = text.strip()
    if _WORD.search(text):
        yield level, text


# ---- Sections ----


def _with_used_headings(blocks: Iterator[tuple[int, str]]) -> Iterator[str]:
    """Yield the blocks without headings of sections that have no text, not even in a section of a lower level."""
    waiting: list[tuple[int, str]] = []
    for level, text in blocks:
        if level:
            while waiting and waiting[-1][0] >= level:
                waiting.pop()
            waiting.append((level, text))
        else:
            yield from (heading for _, heading in waiting)
            waiting = []
            yield text
