"""Which encodings would fit bytes that are not UTF-8: a hint for an error message, never used to read a text.

Each candidate decodes a sample. It scores by how many of the characters outside of ASCII are the frequent ones of one
language that is written in it; Latin alphabets share most of their letters, so each language counts alone. Letters that
mix scripts inside of a word, and capitals behind small letters, count nothing. The right encoding of prose reaches 0.5
and more. No randomness and no state: equal samples give equal answers.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from pipeline.shard.encodings import UTF8, wide_encoding

ENOUGH = 0.4  # score below which no candidate is named
MARGIN = 0.15  # by which the best must lead, for each character that the next reads differently
_RARE = 0.4
_OTHER_IDEOGRAPH = 0.25
_PUNCTUATION = "’‘“”„–—…«»°•"
_WORD = re.compile(r"[^\W\d_]+")
_SCRIPTS = (("\u0370", "Latin"), ("\u0400", "Greek"), ("\u0530", "Cyrillic"), ("\u0590", ""), ("\u0600", "Hebrew"))
_SCRIPTS += (("\u0780", "Arabic"), ("\u0e00", ""), ("\u0e80", "Thai"))

# (frequent, rare) letters of a language outside of ASCII.
Alphabet = tuple[str, str]

_WESTERN: tuple[Alphabet, ...] = (
    ("éèàêâîôûç", "ùëïœüÿæ"),  # French
    ("àèéìòù", "îó"),  # Italian
    ("áéíóúñü¿¡", "ºª"),  # Spanish, Irish
    ("àèéíòóúïüç·", ""),  # Catalan
    ("áâãàçéêíóôú", "õüºª"),  # Portuguese
    ("äöüß", "é"),  # German
    ("åäö", "éü"),  # Swedish, Finnish
    ("æøå", "éòôó"),  # Danish, Norwegian
    ("áðéíóúýþæö", ""),  # Icelandic
    ("ëïéèóö", "üáíúêç"),  # Dutch
)
_CENTRAL: tuple[Alphabet, ...] = (
    ("ąćęłńóśźż", ""),  # Polish
    ("áčéěířšůúýž", "ďťňó"),  # Czech
    ("áäčéíľôšúýž", "ďťňó"),  # Slovak
    ("áéíóöőúüű", ""),  # Hungarian
    ("ăâîşţ", ""),  # Romanian
    ("čćđšž", ""),  # Croatian, Slovene
)
_BALTIC: tuple[Alphabet, ...] = (
    ("ąčęėįšųūž", ""),  # Lithuanian
    ("āčēģīķļņšūž", ""),  # Latvian
    ("äöüõ", "šž"),  # Estonian
)
_TURKISH: tuple[Alphabet, ...] = (("çğıöşü", "âîû"),)
_CYRILLIC: tuple[Alphabet, ...] = (("оеаинтсрвлкм", "дпуяыьгзбчйхжшюцщэфъёіїєґўјљњћђџ«»—–„“№ПВСНОАКМИТРД"),)
_GREEK: tuple[Alphabet, ...] = (("αοιετσνηυρπκ", "λμςωάίόέήύώδγθφβχξζψϊΑΟΕΤΣΠΚΜΗΝ«»"),)
_HEBREW: tuple[Alphabet, ...] = (("יוהלאתרבשמנם", "דחפקעכגצזטסןךףץ"),)
_ARABIC: tuple[Alphabet, ...] = (("اليمنوترهبعد", "فسكقحجةصشطخذضزثئغظىأإآءؤ،؟"),)
_THAI: tuple[Alphabet, ...] = (("านรอกเงมยวลด", "ทสตะคีิปบัห่ไแข้ใพจชุผำศโถซธณ็ูึื์"),)
_SIMPLIFIED_COMMON = (
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家"
    "种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十民第公"
    "。，、“”：；？！（）《》"
)
_TRADITIONAL_COMMON = (
    "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作裡用道行所然家"
    "種事成方多經麼去法學如都同現當沒動面起看定天分還進好小部其些主樣理心她本前開但因只從想實日軍者意無力它與長把機十民第公"
    "。，、「」：；？！（）《》"
)
_KANA_COMMON = "".join(map(chr, range(0x3041, 0x30FF))) + "。、「」・"
_HANGUL_COMMON = "이다는을의에고하가지를은로한기도사리나인대어자시아정서일해그라과것수있보들주부으만했전"

# Of these, other ideographs and syllables count a little too.
_SIMPLIFIED: tuple[Alphabet, ...] = ((_SIMPLIFIED_COMMON, ""),)
_TRADITIONAL: tuple[Alphabet, ...] = ((_TRADITIONAL_COMMON, ""),)
_KANA: tuple[Alphabet, ...] = ((_KANA_COMMON, ""),)
_HANGUL: tuple[Alphabet, ...] = ((_HANGUL_COMMON, ""),)
_ANY_EAST_ASIAN: tuple[Alphabet, ...] = ((_SIMPLIFIED_COMMON + _KANA_COMMON + _HANGUL_COMMON, ""),)

# In the order in which ties are decided: the more frequent encoding of a script comes first.
_CANDIDATES: tuple[tuple[str, tuple[Alphabet, ...]], ...] = (
    ("cp1252", _WESTERN),
    ("cp1251", _CYRILLIC),
    ("gb18030", _SIMPLIFIED),
    ("shift_jis", _KANA),
    ("cp949", _HANGUL),
    ("big5", _TRADITIONAL),
    ("euc_jp", _KANA),
    ("koi8-r", _CYRILLIC),
    ("cp866", _CYRILLIC),
    ("iso8859-5", _CYRILLIC),
    ("cp1250", _CENTRAL),
    ("iso8859-2", _CENTRAL),
    ("cp1253", _GREEK),
    ("cp1254", _TURKISH),
    ("cp1255", _HEBREW),
    ("cp1256", _ARABIC),
    ("iso8859-6", _ARABIC),
    ("cp1257", _BALTIC),
    ("cp874", _THAI),
    ("cp850", _WESTERN),
    ("mac_roman", _WESTERN),
    ("utf-16-le", _ANY_EAST_ASIAN),
    ("utf-16-be", _ANY_EAST_ASIAN),
)


@dataclass(frozen=True)
class _Reading:
    """How a sample reads in one encoding, and how good that is, from 0 to 1."""

    encoding: str
    text: str
    score: float


def fitting_encodings(sample: bytes) -> tuple[str, ...]:
    """Return the encoding that fits a sample that is not UTF-8, two when both may be meant, or none.

    The sample starts at an even place of the file. None too when most of what is not ASCII is valid UTF-8: such a text
    is UTF-8 that was damaged.
    """
    wide = wide_encoding(sample)
    if wide is not None:
        return (wide,)

    not_ascii = sum(byte >= 0x80 for byte in sample)
    undecodable = sample.decode(UTF8, errors="replace").count("\ufffd")
    if not_ascii == 0 or undecodable < 0.3 * not_ascii:
        return ()

    readings = [_read(sample, encoding, alphabets) for encoding, alphabets in _CANDIDATES]
    good = sorted((reading for reading in readings if reading.score >= ENOUGH), key=lambda reading: -reading.score)
    if not good:
        return ()
    best = good[0]
    rivals = (other for other in good[1:] if best.score - other.score < MARGIN * _difference(best.text, other.text))
    rival = next(rivals, None)
    return (best.encoding,) if rival is None else (best.encoding, rival.encoding)


def _difference(text: str, other: str) -> float:
    """Return the share of the characters outside of ASCII that two readings have different, 1 when it is unknown."""
    if len(text) != len(other):
        return 1.0
    foreign = sum(character > "\x7f" for character in text)
    return sum(a != b for a, b in zip(text, other, strict=True)) / max(1, foreign)


def _read(sample: bytes, encoding: str, alphabets: tuple[Alphabet, ...]) -> _Reading:
    text = sample.decode(encoding, errors="replace")
    found = [character for character in text if character > "\x7f" and character != "\xa0"]
    if not found:
        return _Reading(encoding, text, 0.0)

    plausible = _plausible(text)
    score = max(_weight_in(plausible, alphabet) for alphabet in alphabets) / len(found)

    # In a Latin alphabet most letters are ASCII.
    is_latin = alphabets[0][0][0] < "\u0370"
    foreign_letters = sum(map(str.isalpha, found))
    ascii_letters = sum(map(str.isalpha, text)) - foreign_letters
    return _Reading(encoding, text, score / 2 if is_latin and foreign_letters > ascii_letters else score)


def _plausible(text: str) -> Counter[str]:
    """Count the characters outside of ASCII, without letters that cannot stand where they do."""
    counts = Counter(character for character in text if character > "\x7f" and not character.isalpha())
    for word in _WORD.findall(text):
        if word.isascii() or len({_script(character) for character in word} - {""}) > 1:
            continue
        counts.update(
            character
            for before, character in zip(" " + word, word, strict=False)
            if character > "\x7f" and character.isalpha() and not (character.isupper() and before.islower())
        )
    return counts


def _script(character: str) -> str:
    """Return the script of a letter; nothing for those that stand in one word with other scripts."""
    return next((script for end, script in _SCRIPTS if character < end), "")


def _weight_in(counts: Counter[str], alphabet: Alphabet) -> float:
    return sum(count * _weight(character, *alphabet) for character, count in counts.items())


def _weight(character: str, common: str, rare: str) -> float:
    """Return 0 to 1: how usual a character is in a language."""
    if character in common or character in _PUNCTUATION:
        return 1.0
    if character in rare or character.lower() in common:
        return _RARE
    if not rare and common[0] >= "\u3000" and _is_ideograph(character):
        return _OTHER_IDEOGRAPH
    return 0.0


def _is_ideograph(character: str) -> bool:
    return "\u4e00" <= character <= "\u9fff" or "\uac00" <= character <= "\ud7a3"
