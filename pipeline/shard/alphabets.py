"""Candidate encodings, and the letters that are frequent in the languages written in them.

Data for encoding_guess.py. Only characters outside of ASCII are listed, because all candidates agree on ASCII.
"""

from __future__ import annotations

from typing import NamedTuple


class Alphabet(NamedTuple):
    """The characters of one language outside of ASCII."""

    common: str
    rare: str = ""


_WESTERN: tuple[Alphabet, ...] = (
    Alphabet("éèàêâîôûç", "ùëïœüÿæ"),  # French
    Alphabet("àèéìòù", "îó"),  # Italian
    Alphabet("áéíóúñü¿¡", "ºª"),  # Spanish, Irish
    Alphabet("àèéíòóúïüç·"),  # Catalan
    Alphabet("áâãàçéêíóôú", "õüºª"),  # Portuguese
    Alphabet("äöüß", "é"),  # German
    Alphabet("åäö", "éü"),  # Swedish, Finnish
    Alphabet("æøå", "éòôó"),  # Danish, Norwegian
    Alphabet("áðéíóúýþæö"),  # Icelandic
    Alphabet("ëïéèóö", "üáíúêç"),  # Dutch
)
_CENTRAL: tuple[Alphabet, ...] = (
    Alphabet("ąćęłńóśźż"),  # Polish
    Alphabet("áčéěířšůúýž", "ďťňó"),  # Czech
    Alphabet("áäčéíľôšúýž", "ďťňó"),  # Slovak
    Alphabet("áéíóöőúüű"),  # Hungarian
    Alphabet("ăâîşţ"),  # Romanian
    Alphabet("čćđšž"),  # Croatian, Slovene
)
_BALTIC: tuple[Alphabet, ...] = (
    Alphabet("ąčęėįšųūž"),  # Lithuanian
    Alphabet("āčēģīķļņšūž"),  # Latvian
    Alphabet("äöüõ", "šž"),  # Estonian
)
_TURKISH: tuple[Alphabet, ...] = (Alphabet("çğıöşü", "âîû"),)
_CYRILLIC: tuple[Alphabet, ...] = (Alphabet("оеаинтсрвлкм", "дпуяыьгзбчйхжшюцщэфъёіїєґўјљњћђџ«»—–„“№ПВСНОАКМИТРД"),)
_GREEK: tuple[Alphabet, ...] = (Alphabet("αοιετσνηυρπκ", "λμςωάίόέήύώδγθφβχξζψϊΑΟΕΤΣΠΚΜΗΝ«»"),)
_HEBREW: tuple[Alphabet, ...] = (Alphabet("יוהלאתרבשמנם", "דחפקעכגצזטסןךףץ"),)
_ARABIC: tuple[Alphabet, ...] = (Alphabet("اليمنوترهبعد", "فسكقحجةصشطخذضزثئغظىأإآءؤ،؟"),)
_THAI: tuple[Alphabet, ...] = (Alphabet("านรอกเงมยวลด", "ทสตะคีิปบัห่ไแข้ใพจชุผำศโถซธณ็ูึื์"),)
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

# No rare characters are listed: any other ideograph or syllable counts a little; see `_character_weight`.
_SIMPLIFIED: tuple[Alphabet, ...] = (Alphabet(_SIMPLIFIED_COMMON),)
_TRADITIONAL: tuple[Alphabet, ...] = (Alphabet(_TRADITIONAL_COMMON),)
_KANA: tuple[Alphabet, ...] = (Alphabet(_KANA_COMMON),)
_HANGUL: tuple[Alphabet, ...] = (Alphabet(_HANGUL_COMMON),)
_ANY_EAST_ASIAN: tuple[Alphabet, ...] = (Alphabet(_SIMPLIFIED_COMMON + _KANA_COMMON + _HANGUL_COMMON),)

# (encoding, alphabets). The first of equal scores wins, so the more common encoding of a script comes first.
CANDIDATES: tuple[tuple[str, tuple[Alphabet, ...]], ...] = (
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
