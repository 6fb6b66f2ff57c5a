"""What a reader sees of wikitext's nested marks: of a link, and of a template whose text is in its arguments.

Without templates such as {{lang|fr|chat}} and {{convert|5|km}}, sentences would have holes. Templates are pages, and
each wiki has others: the table has those in sentences of the English Wikipedia, whose names other wikis took over. What
they show is described at en.wikipedia.org/wiki/Template:NAME. Names of languages, conversions and links that they add
are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

LINE_OF_LINK, END_OF_LINK = "\x01", "\x02"
"""Marks around a link that is shown only within a line of text."""

_MAX_NAME = 40  # characters

_FILE = re.compile(
    r"[^:]{1,40}:.*\.(?:jpe?g|png|svg|gif|tiff?|webp|xcf|pdf|djvu|og[agv]|opus|web[mp]|mp[34]|mpe?g|midi?|wav|flac|stl)",
    re.IGNORECASE,
)
_DROPPED_NAMESPACE = re.compile(
    r"(?:file|image|media|[ck]at[eé][gq][oó]{1,2}r\w{1,4}|кат[еэ]гор\w{1,3}|κατηγορία|קטגוריה|تصنيف|رده|श्रेणी|หมวดหมู่"
    r"|luokka|flokkur|санат|thể loại|分[类類]|カテゴリ|분류) *:",
    re.IGNORECASE,
)
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*:(?! )")  # [[de:Katze]]: the same page in another language
_PREFIX = re.compile(r"[^\W\d][\w -]{0,39}:(?! )")
_DISAMBIGUATOR = re.compile(r"(?:, [^(),]*| ?[(（][^()（）]*[)）])$")
_NO_TARGET = re.compile(r"[\n\[\]{}<>]")


def shown_of_link(link: str) -> str:
    """Return what a reader sees of [[link]]: nothing of files, categories and versions in other languages.

    Files are known by their suffix, because namespaces have other names in each language. Categories are known by the
    names in larger Wikipedias, and others where they stand, on a line for themselves, which `_blocks` sees.
    """
    target, bar, label = link.partition("|")
    target = target.strip()
    if ":" not in target and "//" not in target and (label or not bar):  # most links, so before the patterns
        return link if _NO_TARGET.search(target) else label or target
    if target.startswith(("http://", "https://", "//")):
        return f"[{link}]"
    if _DROPPED_NAMESPACE.match(target) or _FILE.fullmatch(target):
        return ""
    if _NO_TARGET.search(target):
        return link
    if target.startswith(":"):
        return label if label else target[1:]
    if not bar:
        if _LANGUAGE.match(target):
            return ""
        label = target
    elif not label:  # the pipe trick, which MediaWiki writes out when a page is saved
        label = _DISAMBIGUATOR.sub("", target.partition(":")[2] or target)

    return f"{LINE_OF_LINK}{label}{END_OF_LINK}" if _PREFIX.match(target) else label


class Arguments(NamedTuple):
    """Arguments of a template: those with a number, in order, and those with a name."""

    numbered: list[str]
    named: dict[str, str]

    def at(self, place: int) -> str:
        """Return the numbered argument at a place, from 0, or nothing."""
        return self.numbered[place] if place < len(self.numbered) else ""


def shown_of_template(parts: list[str]) -> str:
    """Return what a reader sees of a template, as wikitext; nothing of one that is not in the table.

    parts: all between the braces, the name in the first one, with the templates and links in it as what is shown of
    them. A character that would be markup is a character reference.
    """
    name = parts[0].partition("|")[0]
    if len(name) > _MAX_NAME:
        return ""
    name = " ".join(name.replace("_", " ").split()).lower()
    if character := _CHARACTERS.get(name):
        return character
    if name.startswith("formatnum:"):
        return "".join(parts).partition(":")[2].partition("|")[0].strip()
    show = _SHOWN.get(name) or (_first if name.startswith("lang-") else None)
    return show(_arguments("".join(parts))) if show else ""


_NAME = re.compile(r"[\w -]{1,20}")


def _arguments(content: str) -> Arguments:
    numbered: dict[int, str] = {}
    named: dict[str, str] = {}
    count = 0
    for part in content.split("|")[1:]:
        before, equals, value = part.partition("=")
        name = before.strip()
        if not equals or not _NAME.fullmatch(name):
            count += 1
            numbered[count] = part.strip()
        elif len(name) == 1 and name in "123456789":
            numbered[int(name)] = value.strip()
        else:
            named[name] = value.strip()
    return Arguments([numbered.get(place, "") for place in range(1, max(numbered, default=0) + 1)], named)


def _first(arguments: Arguments) -> str:
    return arguments.at(0) or arguments.named.get("text", "")


def _paragraph(arguments: Arguments) -> str:
    text = _first(arguments) or arguments.named.get("quote", "")
    return f"\n\n{text}\n\n" if text else ""


def _within(before: str, after: str = "") -> Callable[[Arguments], str]:
    return lambda arguments: f"{before}{arguments.at(0)}{after}" if arguments.at(0) else ""


def _as_of(arguments: Arguments) -> str:
    if alternative := arguments.named.get("alt"):
        return alternative
    begin = "as of" if arguments.named.get("lc") else "As of"
    year, month, day = (arguments.at(place) for place in range(3))
    month = _MONTHS.get(month.removeprefix("0"), month)
    return " ".join(filter(None, [begin, day, month, year])) if year else ""


_MONTHS = {
    "1": "January", "2": "February", "3": "March", "4": "April", "5": "May", "6": "June", "7": "July", "8": "August",
    "9": "September", "10": "October", "11": "November", "12": "December",
}  # fmt: skip


def _fraction(arguments: Arguments) -> str:
    *whole, numerator, denominator = ["", "1", *arguments.numbered][-3:] if arguments.numbered else ["", "", ""]
    fraction = f"{numerator}/{denominator}" if denominator else ""
    return " ".join([*whole, fraction]).strip() if len(arguments.numbered) > 2 else fraction


def _value(arguments: Arguments) -> str:
    number = arguments.at(0) + (f"×10{exponent}" if (exponent := arguments.named.get("e")) else "")
    return f"{number} {arguments.named.get('u') or arguments.named.get('ul') or ''}".strip()


_NUMBER = re.compile(r"[−+-]?\d[\d.,/+⁄]*|[−+-]?\.\d+")
_RANGES = {"-": "–", "–": "–", "to": " to ", "to(-)": " to ", "and": " and ", "and(-)": " and ", "or": " or "}
_RANGES |= {"x": " × ", "by": " by ", "*": " × ", "+/-": " ± ", "±": " ± ", ",": ", "}
_UNITS = {
    "sqmi": "sq mi", "sqkm": "km²", "km2": "km²", "m2": "m²", "m3": "m³", "km3": "km³", "cm2": "cm²", "sqft": "sq ft",
    "ft2": "sq ft", "cuft": "cu ft", "acre": "acres", "mile": "miles", "C": "°C", "F": "°F", "USgal": "US gallons",
    "oilbbl": "barrels", "koilbbl": "thousand barrels", "Moilbbl": "million barrels", "Goilbbl": "billion barrels",
    "oilbbl/d": "barrels per day", "koilbbl/d": "thousand barrels per day", "Moilbbl/d": "million barrels per day",
    "ST": "short tons", "LT": "long tons", "MT": "t", "foot": "feet", "inch": "inches", "yard": "yards",
}  # fmt: skip


def _number(value: str) -> str:
    if "/" in value:  # 3+1/2
        return value.replace("+", " ")
    return f"{int(value):,}" if value.isdecimal() and len(value) < 20 else value


def _measure(arguments: Arguments) -> str:
    """Return the value of {{convert}} in its first unit, as in "5 to 10 km" or "6 ft 2 in"; no conversion."""
    shown = ""
    parts = arguments.numbered
    place = 0
    while place + 1 < len(parts) and _NUMBER.fullmatch(parts[place]):
        shown += _number(parts[place])
        following = parts[place + 1]
        if following in _RANGES:
            shown += _RANGES[following]
        else:
            shown += f" {_UNITS.get(following, following)} "
            if not (place + 3 < len(parts) and parts[place + 3] in ("in", "oz", "ft", "yd", "lb")):
                break
        place += 2
    return shown.strip()


# Those that would be markup are references, so that they are none: l{{'}}''Iliade'', {{nowrap|a {{=}} b}}.
_CHARACTERS = {
    "'": "&#39;", "’": "’", "'s": "&#39;s", "=": "&#61;", "pipe": "&#124;", "okina": "ʻ", "ayin": "ʿ",
    **dict.fromkeys(("nbsp", "spaces", "space", "thinsp", "thin space", "hair space", "hairsp"), " "),
    **dict.fromkeys(("ndash", "endash", "en dash"), "–"),
    **dict.fromkeys(("mdash", "mdashb", "emdash", "em dash"), "—"),
    **dict.fromkeys(("snd", "spnd", "snds", "spndsh", "spaced ndash", "spaced en dash", "dash"), " – "),
    **dict.fromkeys(("·", "•", "bullet", "dot", "middot"), " · "), "eqm": " ⇌ ",
}  # fmt: skip

_SHOWN: dict[str, Callable[[Arguments], str]] = {
    name: show
    for names, show in (
        ("nowrap|nobr|nobreak|small|smaller|smallcaps|small caps|sc|big|larger|nobold|noitalic|em|strong|mono", _first),
        ("math|mvar|var|sub|sup|abbr|tooltip|vanchor|visible anchor|flag|flagcountry|flagu|center|not a typo", _first),
        ("ill|interlanguage link|interlanguage link multi|nihongo|nihongo2|script", _first),
        ("lang|langx|script/arabic|resize", lambda arguments: arguments.at(1) or arguments.named.get("text", "")),
        ("transl|transliteration|color|font color", lambda arguments: next(filter(None, arguments.numbered[::-1]), "")),
        ("chem|chem2|linktext", lambda arguments: "".join(arguments.numbered)),
        ("quote|blockquote|block quote|cquote|quotation", _paragraph),
        ("convert|cvt", _measure),
        ("frac|sfrac|fraction", _fraction),
        ("angbr|angle bracket", _within("⟨", "⟩")),
        ("circa|c.", _within("c. ")),
        ("as of", _as_of),
        ("val", _value),
        *((prefix, _within(f"{prefix.upper()} ")) for prefix in ("uss", "hms", "ss", "rms", "hmas", "hmcs", "usns")),
    )
    for name in names.split("|")
}
