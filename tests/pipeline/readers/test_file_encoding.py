"""--encoding auto: each file of text is read in the encoding that its bytes show."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

import pytest

from pipeline.readers.encodings import AUTO
from pipeline.readers.file_encoding import LOOKED_AT, file_encoding, likely_encoding
from pipeline.readers.inputs import SPLIT_BYTES, plan_splits, with_format
from pipeline.readers.listing import matching_files
from pipeline.readers.ranges import HeldFile
from pipeline.readers.record import Record, RecordOptions
from pipeline.readers.table import read_records
from schemas.manifest import read_manifest
from tests.pipeline.beam_flags import THREADS
from tests.pipeline.readers.input_files import CHINESE, FRENCH, JAPANESE, KOREAN, POLISH, PROSE, RUSSIAN
from tests.pipeline.readers.office_files import zipped
from tests.pipeline.text_rows import sentences_of

FILES = [
    ("a.txt", PROSE, "utf-8"),
    ("b.txt", FRENCH, "cp1252"),
    ("c.txt", RUSSIAN, "cp1251"),
    ("d.txt.gz", RUSSIAN, "koi8-r"),
    ("e.txt", POLISH, "iso8859-2"),
    ("f.txt", CHINESE, "gb18030"),
    ("g.txt", JAPANESE, "euc_jp"),
    ("h.txt.gz", KOREAN, "utf-16"),
    ("j.txt", RUSSIAN, "utf-16-be"),
    ("i.csv", "text;n\n" + FRENCH.replace("\n", ";1\n"), "mac-roman"),
]
LAST_LINES = ("Une année déjà passée.\n", "Прошёл ещё один год.\n")  # of the members of a zip file


def encoding_of(data: bytes) -> str:
    return file_encoding(HeldFile.of("x.txt", data), "x.txt")


def write_folder(folder: Path, *, as_utf8: bool) -> Path:
    folder.mkdir()
    for name, text, encoding in FILES:
        data = text.encode("utf-8" if as_utf8 else encoding)
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)

    french, russian = LAST_LINES
    members: dict[str, bytes | str] = {
        "m.txt": (FRENCH + french).encode("utf-8" if as_utf8 else "cp1252"),
        "n.txt.gz": gzip.compress((RUSSIAN + russian).encode("utf-8" if as_utf8 else "cp866")),
    }
    (folder / "z.zip").write_bytes(zipped(members))
    return folder


def test_a_folder_of_many_encodings_equals_the_same_folder_in_utf8(command, tmp_path: Path) -> None:
    made = {}
    for name, workers in (("utf8", ()), ("mixed", THREADS)):
        folder = write_folder(tmp_path / name, as_utf8=name == "utf8")
        output = tmp_path / f"{name}-text"
        flags = ("--encoding", "auto", *workers, "--num_shards", 2)
        done = command("shard", "--input", folder, "--output", output, *flags)
        assert done.returncode == 0, done.stderr
        made[name] = (read_manifest(str(output), "text").fingerprint, sentences_of(output))

    assert made["utf8"] == made["mixed"]
    expected = {encoding: 1 for _, _, encoding in FILES} | {"cp1252": 2, "cp866": 1}
    found = read_manifest(str(tmp_path / "mixed-text"), "text").statistics["encodings"]
    assert {encoding: entry["files"] for encoding, entry in found.items()} == expected
    assert found["cp866"]["first"] == f"{tmp_path}/mixed/z.zip/n.txt.gz"
    assert f"  2 files are not UTF-8 and were read as cp1252 (the first: {tmp_path}/mixed/b.txt)\n" in done.stdout
    assert "inspect" in done.stdout and "as utf-8" not in done.stdout


def test_a_corpus_of_several_finds_its_encodings(command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(RUSSIAN.encode("koi8-r"))
    (tmp_path / "b.txt").write_bytes(FRENCH.encode("utf-16-le"))
    corpora = "".join(
        f'[[corpus]]\nname = "{name}"\ninput = "{tmp_path}/{name}.txt"\nencoding = "{encoding}"\n'
        for name, encoding in (("a", "Auto"), ("b", "utf-16-le"))
    )
    (tmp_path / "corpora.toml").write_text(corpora)
    done = command("shard", "--inputs", tmp_path / "corpora.toml", "--output", tmp_path / "text")
    assert done.returncode == 0, done.stderr

    manifest = read_manifest(str(tmp_path / "text"), "text")
    assert manifest.statistics["encodings"] == {"koi8-r": {"files": 1, "first": f"{tmp_path}/a.txt"}}
    assert manifest.options["charset_normalizer"]


@pytest.mark.parametrize(
    ("text", "encodings"),
    [
        ("麻雀牌の彫りの中に塗られた薬品が、赤い色を黒く、青い色を黄味に変へてゐた。\n", ("cp932", "euc_jp")),
        ("庭の石灯籠は六角で、苔の間に仏の顔が刻まれてゐる。古い姿がまことに好い。\n", ("cp932", "euc_jp")),
        ("這座城市的天氣很好，大家都在公園裡散步，孩子們在草地上玩。\n", ("big5hkscs", "gb18030")),
        ("这座城市的天气很好，大家都在公园里散步，孩子们在草地上玩。\n", ("gb18030",)),
        ("오늘은 날씨가 좋아서 공원에 갔다. 도서관에는 책이 많다.\n", ("cp949",)),
    ],
)
def test_a_few_lines_in_east_asian_encodings_are_told_apart(text: str, encodings: tuple[str, ...]) -> None:
    prose = "With hotels, a bakery and a railway station, the town is larger than most of its neighbors.\n"
    for encoding in encodings:
        assert encoding_of((text * 3).encode(encoding)) == encoding
        assert encoding_of((prose + text * 3).encode(encoding)) == encoding
        assert encoding_of((prose * 400 + text).encode(encoding)) == encoding


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


def test_most_texts_are_read_as_they_were_written() -> None:
    wrong = set()
    for name, written in WRITTEN:
        text = (TEXTS[name] + "\n") * 5
        data = text.encode(written)
        if data.decode(encoding_of(data), errors="replace") != text:
            wrong.add((name, written))
    assert wrong <= {("fr", "cp850"), ("it", "cp850"), ("de", "cp850")}


def test_without_a_package_that_guesses_western_text_is_still_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "charset_normalizer", None)
    assert likely_encoding(TEXTS["fr"].encode("cp1252")) == "cp1252"
    assert likely_encoding(TEXTS["ru"].encode("cp1251")) == ""


@pytest.mark.parametrize("text", [FRENCH, RUSSIAN, CHINESE, JAPANESE], ids=["fr", "ru", "zh", "ja"])
@pytest.mark.parametrize("share", [0.0002, 0.002, 0.02])
def test_damaged_utf8_stays_utf8(text: str, share: float) -> None:
    data = bytearray((text * 4).encode())
    rng = random.Random(0)
    for _ in range(1 + int(share * len(data))):
        data[rng.randrange(len(data))] = rng.randrange(0x80, 0x100)
    assert encoding_of(bytes(data)) == encoding_of(bytes(data[:-1])) == "utf-8"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PROSE.encode() * 99,
        PROSE.encode() * 20 + b"\x81\x8d\x9d",
        b"".join(PROSE.encode() + bytes([number]) for number in range(0x80, 0x100)),
        random.Random(0).randbytes(100_000),
        (FRENCH * 9).encode() + FRENCH.encode("cp1252"),
    ],
    ids=["empty", "ascii", "ascii-damaged", "ascii-much-damaged", "binary", "two-encodings"],
)
def test_what_is_in_no_other_encoding_is_refused_or_read_as_utf8(data: bytes) -> None:
    assert encoding_of(data) == "utf-8"


def test_a_large_file_that_was_cut_at_wrong_bytes_is_read_once(tmp_path: Path) -> None:
    """Bytes of UTF-16 that look like line ends lie within its characters, such as Ċ, U+010A."""
    line = "Ċ" * 50_000 + " ab\n"
    lines = 3 * SPLIT_BYTES // len(line.encode("utf-16-le"))
    (tmp_path / "x.txt").write_bytes((line * lines).encode("utf-16"))

    splits = plan_splits(matching_files(str(tmp_path / "x.txt")), "auto", AUTO)
    ranges = [with_format(file_range) for split in splits for file_range in split.ranges]
    records = [list(read_records(one, RecordOptions("text", "line"))) for one in ranges]
    assert [len(found) for found in records] == [lines, 0, 0, 0][: len(ranges)]
    assert len(ranges) >= 3 and {one.encoding for one in ranges} == {"utf-16"}
    assert all(isinstance(record, Record) and record.text.rstrip("\n") == line.rstrip("\n") for record in records[0])


@pytest.mark.parametrize(("place", "expected"), [(0.5, "cp1252"), (1.5, "utf-8")])
def test_of_a_larger_file_the_beginning_is_looked_at(tmp_path: Path, place: float, expected: str) -> None:
    """What comes later is refused by the reader."""
    data = bytearray(PROSE.encode() * (2 * LOOKED_AT // len(PROSE)))
    foreign = "Là-bas, l'été fut décidé.\n".encode("cp1252") * 40_000
    start = int(place * LOOKED_AT)
    data[start : start + len(foreign)] = foreign
    (tmp_path / "x.txt").write_bytes(data)
    (file,) = matching_files(str(tmp_path / "x.txt"))
    assert file_encoding(file, "x.txt") == expected


def test_a_file_in_two_encodings_is_refused_in_one_line(command, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes((FRENCH * 9).encode() + FRENCH.encode("cp1252"))
    (tmp_path / "y").mkdir()
    (tmp_path / "y [old]").mkdir()
    for name in ("y/a.txt", "y/b [1].txt", "y [old]/c.txt", "z.txt"):
        (tmp_path / name).write_text(FRENCH)
    output = tmp_path.parent / f"{tmp_path.name}-text"
    shard = ("shard", "--input", tmp_path, "--output", output, "--encoding", "auto", "--language", "fr")
    done = command(*shard)
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    assert "x.txt is not UTF-8" in done.stderr and "--encoding auto found no encoding that fits all" in done.stderr

    for names, error in ((["x.txt", "b"], "--exclude b is none of the 5 files"), (["x.txt", "*"], "leaves no file")):
        refused = command(*shard, "--exclude", *names)
        assert refused.returncode == 2 and error in refused.stderr
    done = command(*shard, "--exclude", "x.txt", "y/b [[]*", "y [old]")
    assert done.returncode == 0 and " 2 documents, " in done.stdout, done.stderr
    assert "3 files of the input left out by --exclude." in done.stderr
    manifest = read_manifest(str(output), "text")
    assert manifest.options["exclude"] == ["x.txt", "y/b [[]*", "y [old]"]


def test_turkish_with_capitals_is_found() -> None:
    text = "Ben İstanbul'da yaşıyorum ve çok mutluyum. İzmir de güzeldir, değil mi? Şimdi ılık bir gün.\n" * 20
    assert encoding_of(text.encode("cp1254")) == "cp1254"


def test_a_large_file_of_one_line_is_known_by_its_beginning(tmp_path: Path) -> None:
    line = (FRENCH.replace("\n", " ") * 40).encode("cp1252")
    path = tmp_path / "line.txt"
    path.write_bytes(b"Plain words. " * 40_000 + line * (1 + LOOKED_AT // len(line)))
    (file,) = matching_files(str(path))
    assert file.size > LOOKED_AT
    assert file_encoding(file, "line.txt") == "cp1252"


THAI = "วันนี้เราไปมหาวิทยาลัย อากาศดีมาก ทุกคนมีความสุข\n" * 30
ARABIC = "ذهبنا اليوم إلى الجامعة. كان الطقس جميلا.\n" * 30


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", [RUSSIAN, THAI, ARABIC], ids=["Russian", "Thai", "Arabic"])
def test_utf_16_without_a_mark_whose_bytes_are_ascii(text: str, encoding: str) -> None:
    data = text.encode(encoding)
    assert data.decode(encoding_of(data)) == text


def test_characters_of_utf_8_keep_a_file_in_utf_8() -> None:
    line = "Café é à ü ö.\n\n"
    text = b"Plain English words stand here in a row.\n\n" * 30_000 + line.encode() * 3 + line.encode("cp1252") * 3
    assert encoding_of(text) == "utf-8"


def test_text_in_several_languages_of_one_encoding() -> None:
    assert encoding_of((f"{TEXTS['de']}\n{TEXTS['fr']}\n" * 3).encode("cp1252")) == "cp1252"
    assert encoding_of((f"{TEXTS['de']}\n{TEXTS['pl']}\n" * 3).encode("cp1250")) != "cp1252"
