"""The encoding that the error about undecodable bytes names, and texts in many encodings."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from pipeline.readers.file_encoding import likely_encoding

TEXTS = {
    "fr": "Le café était fermé, mais la crème brûlée restait très bonne. Où êtes-vous allés hier après la fête ?",
    "fr-short": "Café crème brûlée. Très bon.",
    "it": "Però non è così facile: il governo può già fare di più, perché la città è cresciuta. Ciò che accadrà.",
    "it-short": "La città è bella perché è antica. Così può essere più felice. Sarà già lunedì.",
    "es": "El niño comió una manzana mañana. La canción está aquí, señor. ¿Cuándo llegó usted? Él habló rápido.",
    "ca": "És una nació molt gran. Això és així perquè sí. Avui farà bon temps a Òdena; l'època pròxima.",
    "ca-long": "El català és una llengua romànica. Ara bé, València també té història pròpia; l'època és bona.",
    "pt": "A situação não é fácil. São Paulo é uma cidade muito grande, e o coração da região está lá. Não há opção.",
    "is": "Þetta er íslenska. Það er gott að læra tungumál. Ég á hús við ána.",
    "de": "Die Straße führt über die Brücke. Später möchten wir für größere Häuser prüfen, ob die Tür schließt.",
    "sv": "Det är en vacker dag på ön. Jag går över ån och ser på fåglarna. Kön är lång på måndag.",
    "da": "Jeg går på gaden. Børnene løber og råber på øen. Det er ærgerligt.",
    "no": "Han går på skolen. Været er dårlig, men på fjellet er det sjøutsikt. Både far og mor får også gå.",
    "fi": "Hän meni kylään päivällä. Tämä on hyvä asia, eikö niin? Äiti jää kotiin.",
    "nl": "De zeeën en financiën zijn vóór één idee geruïneerd; coördinatie is dé oplossing.",
    "ga": "Tá an lá go breá. Níl aon tinteán mar do thinteán féin. Is maith liom é.",
    "quotes": "It\u2019s the \u201cbest\u201d thing \u2014 he said \u2014 that we\u2019ve ever had. Don\u2019t worry.",
    "pl": "Zażółć gęślą jaźń. Wszyscy ludzie rodzą się wolni i równi. Są oni obdarzeni rozumem.",
    "cs": "Příliš žluťoučký kůň úpěl ďábelské ódy. Všichni lidé rodí se svobodní.",
    "hu": "Minden emberi lény szabadon születik és egyenlő méltósága és joga van. Őt szűk út várja.",
    "tr": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Işık güzel.",
    "lt": "Visi žmonės gimsta laisvi ir lygūs savo orumu ir teisėmis. Jiems suteiktas protas ir sąžinė.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "uk": "Всі люди народжуються вільними і рівними у своїй гідності та правах.",
    "el": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "he": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "ar": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق.",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。",
    "zh-traditional": "人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心。",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
}
WESTERN = list(TEXTS)[: list(TEXTS).index("quotes") + 1]
WRITTEN = [
    *((name, "cp1252") for name in WESTERN),
    *((name, "mac_roman") for name in ("fr", "es", "de", "quotes")),
    *((name, "cp850") for name in ("fr", "de", "it")),
    *((name, "cp1250") for name in ("pl", "cs", "hu")),
    *((name, "iso8859-2") for name in ("pl", "cs")),
    ("tr", "cp1254"),
    ("lt", "cp1257"),
    *(("ru", encoding) for encoding in ("cp1251", "koi8-r", "cp866", "iso8859-5")),
    ("uk", "cp1251"),
    ("el", "cp1253"),
    ("ar", "cp1256"),
    ("ar", "iso8859-6"),
    ("th", "cp874"),
    *(("ja", encoding) for encoding in ("shift_jis", "euc_jp", "utf-16-le", "utf-16-be")),
    *(("zh", encoding) for encoding in ("gb18030", "utf-16-le")),
    ("zh-traditional", "big5"),
    ("ko", "cp949"),
]


def test_without_a_package_that_guesses_western_text_is_still_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *more: Any) -> Any:
        if name == "charset_normalizer":
            raise ImportError
        return import_module(name, *more)

    import_module = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert likely_encoding(TEXTS["fr"].encode("cp1252")) == "cp1252"
    assert likely_encoding(TEXTS["ru"].encode("cp1251")) == ""
