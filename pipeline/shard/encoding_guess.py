"""Which encoding would fit bytes that are not UTF-8: a hint for an error message, never used to read a text.

Each candidate decodes a sample. It scores by how many of the characters outside of ASCII are the frequent ones of the
languages that are written in it. The right encoding of prose reaches 0.5 and more; wrong ones give capitals inside of
words, signs and rare ideographs. No randomness and no state: equal samples give equal answers.
"""

from __future__ import annotations

from pipeline.shard.encodings import UTF8, wide_encoding

ENOUGH = 0.4  # score below which no candidate is named
_COMMON = 1.0
_OTHER_LETTER = 0.4
_OTHER_IDEOGRAPH = 0.25

_WESTERN = "éèàçêâîôùëïöäüßñóíáúãåøæœ’‘“”–—…«»°¿¡ÉÀÖÜÄÅØ", "õûÿðþýÞÁÍÓÚÆÂÊÔÇÑ"
_CENTRAL = "ąćęłńóśźżáčďéěíňřšťúůýžőűöüäôâăîŁŚŻČŠŽ„”–’"
_BALTIC = "āčēģīķļņšūžąęėįųõäöüŠŽ„“–"
_TURKISH = "ıişğçöüâîİŞĞÇÖÜ’“”"
_CYRILLIC = "оеаинтсрвлкм", "дпуяыьгзбчйхжшюцщэфъёіїєґўјљњћђџ«»—–„“№ПВСНОАКМИТРД"
_GREEK = "αοιετσνηυρπκ", "λμςωάίόέήύώδγθφβχξζψϊΑΟΕΤΣΠΚΜΗΝ«»"
_HEBREW = "יוהלאתרבשמנם", "דחפקעכגצזטסןךףץ"
_ARABIC = "اليمنوترهبعد", "فسكقحجةصشطخذضزثئغظىأإآءؤ،؟"
_THAI = "านรอกเงมยวลด", "ทสตะคีิปบัห่ไแข้ใพจชุผำศโถซธณ็ูึื์"
_SIMPLIFIED = (
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家"
    "种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十民第公"
    "。，、“”：；？！（）《》"
)
_TRADITIONAL = (
    "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作裡用道行所然家"
    "種事成方多經麼去法學如都同現當沒動面起看定天分還進好小部其些主樣理心她本前開但因只從想實日軍者意無力它與長把機十民第公"
    "。，、「」：；？！（）《》"
)
_KANA = "".join(map(chr, range(0x3041, 0x30FF))) + "。、「」・"
_HANGUL = "이다는을의에고하가지를은로한기도사리나인대어자시아정서일해그라과것수있보들주부으만했전"

# In the order in which ties are decided: the more frequent encoding of a script comes first.
_CANDIDATES: tuple[tuple[str, str, str], ...] = (
    ("cp1252", *_WESTERN),
    ("cp1251", *_CYRILLIC),
    ("gb18030", _SIMPLIFIED, ""),
    ("shift_jis", _KANA, ""),
    ("cp949", _HANGUL, ""),
    ("big5", _TRADITIONAL, ""),
    ("euc_jp", _KANA, ""),
    ("koi8-r", *_CYRILLIC),
    ("cp866", *_CYRILLIC),
    ("iso8859-5", *_CYRILLIC),
    ("cp1250", _CENTRAL, ""),
    ("iso8859-2", _CENTRAL, ""),
    ("cp1253", *_GREEK),
    ("cp1254", _TURKISH, ""),
    ("cp1255", *_HEBREW),
    ("cp1256", *_ARABIC),
    ("iso8859-6", *_ARABIC),
    ("cp1257", _BALTIC, ""),
    ("cp874", *_THAI),
    ("cp850", *_WESTERN),
    ("mac_roman", *_WESTERN),
    ("utf-16-le", _SIMPLIFIED + _KANA + _HANGUL, ""),
    ("utf-16-be", _SIMPLIFIED + _KANA + _HANGUL, ""),
)


def guess_encoding(sample: bytes) -> str | None:
    """Return the name of the encoding that fits a sample that is not UTF-8, or None when none does.

    The sample starts at an even place of the file. None too when most of what is not ASCII is valid UTF-8: such a text
    is UTF-8 that was damaged.
    """
    wide = wide_encoding(sample)
    if wide is not None:
        return wide

    not_ascii = sum(byte >= 0x80 for byte in sample)
    undecodable = sample.decode(UTF8, errors="replace").count("\ufffd")
    if undecodable < 0.3 * not_ascii:
        return None

    scores = [(_score(sample, *candidate), -place) for place, candidate in enumerate(_CANDIDATES)]
    best, place = max(scores)
    return _CANDIDATES[-place][0] if best >= ENOUGH else None


def _score(sample: bytes, encoding: str, common: str, letters: str) -> float:
    """Return 0 to 1: how frequent the characters outside of ASCII are in the languages of an encoding."""
    text = sample.decode(encoding, errors="replace")
    found = [character for character in text if character > "\x7f" and character != "\xa0"]
    if not found:
        return 0.0
    score = sum(_weight(character, common, letters) for character in found) / len(found)

    # In a Latin alphabet most letters are ASCII.
    is_latin = common[0] < "\u0370"
    foreign_letters = sum(map(str.isalpha, found))
    ascii_letters = sum(character.isalpha() for character in text) - foreign_letters
    return score / 2 if is_latin and foreign_letters > ascii_letters else score


def _weight(character: str, common: str, letters: str) -> float:
    if character in common:
        return _COMMON
    if character in letters:
        return _OTHER_LETTER
    if "\u4e00" <= character <= "\u9fff" or "\uac00" <= character <= "\ud7a3":
        return _OTHER_IDEOGRAPH if not letters else 0.0
    return 0.0
