"""--encoding auto: the encoding of one file, as its first LOOKED_AT bytes show it, and guesses for messages and pages.

The decision depends on nothing else, so every worker comes to the same one. What the first bytes do not show is refused
by the reader of the file, as bytes outside its encoding always are.

Texts in the Latin alphabet are known by the letters of their language: in the right encoding nearly all letters outside
of ASCII belong to one language. charset-normalizer, which looks at how unusual the characters are, often takes them for
those of another region. Chinese, Japanese and Korean are known by their most frequent characters, which few texts in a
wrong encoding have; the package is wrong about one in eighty. It decides about all other scripts.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version

from pipeline.readers.encodings import (
    DAMAGED_UTF8,
    UTF8,
    encoding_of_head,
    is_damaged_utf8,
    is_in_other_encoding,
    is_western,
)
from pipeline.readers.listing import InputFile
from pipeline.readers.open import DECOMPRESSION_ERRORS, compression_of, open_plain
from pipeline.readers.ranges import HEAD_BYTES, HeldFile, open_range
from pipeline.readers.record import MAX_UNDECODABLE_RATIO, MIN_LETTERS, MIN_PLACES, decode_utf8
from schemas.errors import UsageError

LOOKED_AT = 16 << 20
"""Bytes of text of a file that are looked at, in a tenth of a second."""

_MIN_EAST_ASIAN = 8  # bytes outside of ASCII
_PURE = 0.7  # share of undecodable places among the bytes outside ASCII
_MOST_FREQUENT = "cp1252"  # which even those few are taken for
_GUESSED_FROM = 1 << 14  # bytes
_ASCII = bytes(range(0x80))
_REPLACEMENT = "\ufffd".encode()

_PACKAGE = "charset-normalizer"

# Letters outside of ASCII, and signs that are used as letters are, of each language or of several with the same.
_WESTERN = (
    "àâæçéèêëîïôœùûüÿ",  # French
    "äöüßé",  # German
    "áéíñóúü¿¡ºª",  # Spanish, Galician, Irish
    "àèéìíîòóùú",  # Italian
    "áâãàçéêíóôõúüºª",  # Portuguese
    "àçèéíïòóúü·",  # Catalan
    "åäöéü",  # Swedish, Finnish
    "æøåéèêóòôä",  # Danish, Norwegian
    "áéëèêïíóöüú",  # Dutch
    "áéíóúýþæöð",  # Icelandic
    "áíóúýæøð",  # Faroese
    "ëç",  # Albanian
)
_CENTRAL = (
    "ąćęłńóśźż",  # Polish
    "áčďéěíňóřšťúůýž",  # Czech
    "áäčďéíĺľňóôŕšťúýž",  # Slovak
    "áéíóöőúüű",  # Hungarian
    "čćđšž",  # Croatian, Slovenian
    "ăâîşţ",  # Romanian
)
_SEVERAL = "".join(_WESTERN[:5])  # a text in several of the largest Western languages
_BALTIC = (
    "ąčęėįšųūž",  # Lithuanian
    "āčēģīķļņšūž",  # Latvian
)
_ESTONIAN = ("äõöüšž",)
_TURKISH = ("çğıöşüİ",)
_GREEK = ("αβγδεζηθικλμνξοπρστυφχψωςάέήίόύώϊϋΐΰ",)

Languages = tuple[tuple[str, tuple[str, ...]], ...]
"""Encodings, each with the letters of the languages that are written in it."""

# Encodings with the languages that are written in them. The first one of equal fit is taken.
_LANGUAGES: Languages = (
    ("cp1252", (*_WESTERN, *_ESTONIAN)),
    ("iso8859-15", (*_WESTERN, *_ESTONIAN)),
    ("cp1250", _CENTRAL),
    ("iso8859-2", _CENTRAL),
    ("cp1254", _TURKISH),
    ("cp1257", (*_BALTIC, *_ESTONIAN)),
    ("iso8859-13", (*_BALTIC, *_ESTONIAN)),
    ("iso8859-16", ("ăâîșț",)),
    ("cp1258", ("àáâãăđèéêìíòóôõơùúưý\u0300\u0301\u0303\u0309\u0323",)),  # Vietnamese, with marks that combine
    ("mac_roman", _WESTERN),
    ("cp850", _WESTERN),
    ("cp852", _CENTRAL),
    ("mac_latin2", _CENTRAL),
    ("cp857", _TURKISH),
)
_GREEK_ENCODINGS: Languages = (("cp1253", _GREEK), ("iso8859-7", _GREEK))
_MIN_FIT = 0.9  # minimum share of the characters outside of ASCII that are of the language
_MIN_FIT_OF_SEVERAL = 0.98

# Those of DOS and old Macs have letters where others have typographic signs, so a text with signs alone would fit, too.
_RARE = ("mac_roman", "cp850", "cp852", "mac_latin2", "cp857")
_RARE_FIT = 0.95  # factor of their fit

# A third to a half of a text, and of one in another encoding at most some hundredths.
_KANA = "".join(map(chr, (*range(0x3041, 0x3094), *range(0x30A1, 0x30F7), 0x30FC)))
_HANZI = (
    "的一是不了在人有我他这個个們们這中来來上大为為和国國地到以说說时時要就出会會可也你对對生能而子那得于於着著下自之年过過发發後后作里"
    "用道行所然家種种事成方多经經麼么去法学學如都同现現当當没沒动動面起看定天分还還进進好小部其些主样樣理心她本前开開但因只从從想实實"
    "无無何何与與此云雲日月山风風水三十月年高文又将將见見"
)
_HANGUL = "이다는에을가의고지하로한은를도서기나사리어아자대시니라게들인있해그수보만스정일제으요여것전부구면원장과"
_EAST_ASIAN = (
    ("cp932", frozenset(_KANA)),
    ("euc_jp", frozenset(_KANA)),
    ("gb18030", frozenset(_HANZI)),
    ("big5hkscs", frozenset(_HANZI)),
    ("cp949", frozenset(_HANGUL)),
)
_MIN_COMMON = 0.15  # of the characters outside of ASCII

# Typographic signs fit every language.
_SIGNS = frozenset(
    "\u2018\u2019\u201a\u201c\u201d\u201e\u2013\u2014\u2026\u2022\u20ac\xa3\xab\xbb\xa0\xad\xa7\xa9\xae\xb0\xb7"
)

# Of charset-normalizer: more chaos than its threshold of 0.2 may be, because coherence decides with it.
_MAX_CHAOS = 0.4
_CHAOS_WEIGHT = 3

_FOREIGN_WORD = re.compile(r"(?<![A-Za-z])[^\W\d_A-Za-z]{2,}(?![A-Za-z])")
_MIN_IN_WORDS = 0.6  # of the characters outside of ASCII

_ASCII_LETTER = re.compile(rb"[A-Za-z]")
_NOT_ASCII = re.compile(rb"[\x80-\xff]")

# In a wrong encoding, letters become capitals within words, and signs where no such sign is.
_MIDDLE_CAPITAL = re.compile(r"(?<=[^\W\d_A-Z])[^\W\d_A-Za-z]")
_MISPLACED = re.compile("(?<=[A-Za-z])[\u201a\u201e\u2022\u20ac]|(?<=[A-Za-z])[\u2026\xab\xbb](?=[A-Za-z])")

# What charset-normalizer chooses from: of encodings that contain one another, only the largest.
_OTHERS = [
    *("cp1251", "koi8_r", "koi8_u", "cp866", "iso8859_5", "mac_cyrillic", "kz1048"),
    *("cp1253", "iso8859_7", "cp1255", "iso8859_8", "cp1256", "iso8859_6", "cp874", "cp1258"),
    *("gb18030", "big5hkscs", "cp932", "euc_jp", "cp949"),
    *("cp1252", "cp1250", "iso8859_2", "cp1254", "cp1257"),
]


def file_encoding(file: InputFile, shown: str) -> str:
    """Return Python's name of the encoding of a text file; UTF-8, too, if its bytes show none.

    shown: the file's name in errors. Damaged UTF-8 is UTF-8. Raises DataError and StorageError if the file cannot be
    opened. Other damage is left to the worker that reads it.
    """
    if isinstance(file, HeldFile):  # two members of an archive may have one name
        return _found_encoding(file, shown)
    return _remembered_encoding(file, shown)


def _found_encoding(file: InputFile, shown: str) -> str:
    with open_plain(open_range(file, 0, min(file.size, LOOKED_AT)), shown, compression_of(file.path)) as opened:
        try:
            data = opened.read(LOOKED_AT)
        except DECOMPRESSION_ERRORS:
            return UTF8
    found = encoding_of_head(data[:HEAD_BYTES])
    return found if found != UTF8 or data.isascii() else encoding_of_text(data)


_remembered_encoding = lru_cache(1024)(_found_encoding)  # a name for each file that this process reads a range of


def encoding_of_text(data: bytes) -> str:
    """Return the encoding of the beginning of a text, by the tests that refuse a file in another encoding than its own.

    A short file with fewer than MIN_PLACES places that are not UTF-8 is in another encoding if they are letters in it,
    and so is one without any UTF-8 outside of ASCII whose places are what a text in cp1252 has there.
    """
    foreign = len(data.translate(None, _ASCII))
    text, _ = codecs.utf_8_decode(data, "replace", False)  # a character may be cut at the end
    undecodable = text.count("\ufffd") - data.count(_REPLACEMENT)
    if undecodable == 0 or undecodable < DAMAGED_UTF8 * foreign:
        return UTF8

    sample = _undecodable_lines(data)
    if 0 in sample:  # data, or UTF-32 that its beginning did not show
        return UTF8

    # Of Western letters of one byte nearly all are undecodable. With fewer, the rest are characters of UTF-8.
    by_letters = encoding_by_letters(sample)
    is_letters = by_letters != "" or is_in_other_encoding(sample)
    if is_letters and undecodable < _PURE * foreign:
        return UTF8
    fallback = _MOST_FREQUENT if text.replace("\ufffd", "").isascii() and is_western(sample) else UTF8
    if undecodable < MIN_LETTERS:
        return fallback if by_letters in ("", fallback) else UTF8

    is_much = undecodable >= MIN_PLACES and undecodable > MAX_UNDECODABLE_RATIO * len(data)
    is_other = is_much or is_letters or (foreign >= _MIN_EAST_ASIAN and _by_common_characters(sample) != "")
    return (guess_encoding(sample) if is_other else "") or fallback


def _undecodable_lines(data: bytes) -> bytes:
    """Return the first lines that are not UTF-8, _GUESSED_FROM bytes or a little more; of long lines a part."""
    sample = b""
    for line in io.BytesIO(data):
        if len(sample) >= _GUESSED_FROM:
            break
        _, undecodable = decode_utf8(line.rstrip(b"\n"), 0)
        if undecodable is not None:
            sample += undecodable.sample + b"\n"
    return sample


# ---- Guesses ----


@cache
def guesser_version() -> str:
    """Return the version of charset-normalizer. Raises UsageError, with the pip command, if it is not installed."""
    try:
        return version(_PACKAGE)
    except PackageNotFoundError as error:
        raise UsageError(
            f'--encoding auto needs the package {_PACKAGE}. It comes with the extra "pipeline": '
            'pip install "clozeline[pipeline]"'
        ) from error


def guess_encoding(sample: bytes) -> str:
    """Return Python's name of the likely encoding of lines that are not UTF-8, or an empty string."""
    by_letters = encoding_by_letters(sample)
    if by_letters:
        return by_letters

    found = _by_common_characters(sample) or _guess_by_package(sample)
    return (_plausible(found, sample) or _of_several(sample)) if _is_latin(sample) else found


def likely_encoding(sample: bytes) -> str:
    """Return `guess_encoding` for messages and pages; empty for damaged UTF-8 and without charset-normalizer."""
    try:
        return "" if is_damaged_utf8(sample) else guess_encoding(sample)
    except ImportError:
        return ""


def encoding_by_letters(sample: bytes) -> str:
    """Return the encoding in which lines are nearly all in one language of the Latin alphabet, or an empty string."""
    return _best_by_letters(sample, _LANGUAGES) if _is_latin(sample) else ""


def _of_several(sample: bytes) -> str:
    """Return cp1252 if nearly all letters are those of several languages that are written in it; else empty."""
    (fit, *_), *_ = _ranks(sample.decode("cp1252", errors="replace"), (_SEVERAL,))
    return "cp1252" if fit >= _MIN_FIT_OF_SEVERAL else ""


def _is_latin(sample: bytes) -> bool:
    return len(_ASCII_LETTER.findall(sample)) > 2 * len(_NOT_ASCII.findall(sample))


def _by_common_characters(sample: bytes) -> str:
    """Return the encoding in which lines have many of the most frequent characters of Chinese, Japanese or Korean."""
    best, best_share = "", _MIN_COMMON
    for encoding, common in _EAST_ASIAN:
        foreign = [character for character in sample.decode(encoding, errors="replace") if character > "\x7f"]
        fitting = sum(map(common.__contains__, foreign)) - foreign.count("\ufffd")
        share = fitting / max(1, len(foreign))
        if share > best_share:
            best, best_share = encoding, share
    return best


def _guess_by_package(sample: bytes) -> str:
    """Return the guess of charset-normalizer: of what it takes for text, the most like a language.

    Chaos is how unusual neighboring characters are, and coherence how much their frequencies are those of a language,
    both in percent. The package itself prefers the least chaos, whatever the coherence.
    """
    from charset_normalizer import from_bytes

    matches = from_bytes(sample, cp_isolation=_OTHERS, threshold=_MAX_CHAOS)
    if not matches:
        return ""
    best = max(matches, key=lambda match: match.percent_coherence - _CHAOS_WEIGHT * match.percent_chaos)
    found = codecs.lookup(best.encoding).name
    if found in ("cp1253", "iso8859-7"):  # they differ in few letters
        return _best_by_letters(sample, _GREEK_ENCODINGS) or found
    return found


def _plausible(encoding: str, sample: bytes) -> str:
    """Return the encoding of lines with many Latin letters if its other letters make words; else an empty string.

    Damaged lines in ASCII have single characters of any kind instead.
    """
    if not encoding:
        return ""
    text = sample.decode(encoding, errors="replace")
    foreign = sum(character > "\x7f" for character in text)
    in_words = sum(map(len, _FOREIGN_WORD.findall(text)))
    return encoding if in_words >= _MIN_IN_WORDS * foreign else ""


def _best_by_letters(sample: bytes, languages: Languages) -> str:
    """Return the encoding in which the text is best in one of the languages, or an empty string."""
    best, best_rank = "", (0.0, 0, 0)
    for encoding, alphabets in languages:
        rank = max(_ranks(sample.decode(encoding, errors="replace"), alphabets))
        if encoding in _RARE:
            rank = (rank[0] * _RARE_FIT, *rank[1:])
        if rank > best_rank:
            best, best_rank = encoding, rank
    return codecs.lookup(best).name if best_rank[0] >= _MIN_FIT else ""


def _ranks(text: str, alphabets: tuple[str, ...]) -> Iterator[tuple[float, int, int]]:
    """Yield how well the characters outside of ASCII fit each language, from 0 to 1.

    Of equal fits, Western languages rank first, then those with few letters.
    """
    foreign = [character for character in text if character > "\x7f"]
    misplaced = sum(map(str.isupper, _MIDDLE_CAPITAL.findall(text))) + len(_MISPLACED.findall(text))
    signs = sum(map(_SIGNS.__contains__, foreign))
    letters = [character.lower() for character in foreign if character not in _SIGNS]

    for alphabet in alphabets:
        known = sum(map({letter.lower() for letter in alphabet}.__contains__, letters))  # of İ, two characters
        fit = (known + signs - misplaced) / max(1, len(foreign))
        yield fit, alphabet in _WESTERN, 0 if alphabet in _WESTERN else -len(alphabet)
