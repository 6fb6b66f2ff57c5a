"""Inputs of the recorded jobs: real words in several scripts, in each format, compression and encoding that is read."""

from __future__ import annotations

import bz2
import gzip
import html
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

SENTENCES = Path(__file__).resolve().parents[1] / "golden/sentences.txt"
DOCUMENTS = {"en": 90, "fr": 25, "de": 20, "ru": 15, "el": 8, "zh": 20, "ja": 12, "hi": 12, "ko": 8}
"""How many documents of each language the corpus has."""

UNSPACED = ("zh", "ja")
FRAME_DOCUMENTS = 3  # in each gzip member, bzip2 stream or zstd frame, which have some 500 bytes

Document = tuple[str, list[str]]
"""A language and sentences."""


def write_inputs(folder: Path) -> None:
    """Write all inputs. They are the same in every run, but for what zlib makes of them."""
    documents = _documents()
    corpus = [*documents, *documents[::9], *_near_copies(documents)]
    for name in ("files", "wiki/AA", "wiki/AB", "mixed/inner"):
        (folder / name).mkdir(parents=True)

    _write_plain(folder, documents)
    _write_languages(folder, documents)
    _write_records(folder, documents)
    _write_compressed(folder, corpus)
    _write_mixed(folder / "mixed", documents)

    (folder / "corpus.jsonl").write_text(_json_lines(corpus))
    (folder / "chain.jsonl").write_text(_json_lines(_chain(documents)))
    _write_parquet(folder / "rows.parquet", "body", documents)
    for name, part in (("AA/wiki_00", documents[:60]), ("AA/wiki_01", documents[60:100]), ("AB/wiki_00", corpus[100:])):
        (folder / "wiki" / name).write_text(_wiki(part))


def _documents() -> list[Document]:
    """Return the documents, whose order mixes the languages. random() is the same in every version of Python."""
    draw = random.Random(1).random
    sentences: dict[str, list[str]] = {}
    listed: list[str] = []
    for line in SENTENCES.read_text().splitlines():
        if line.startswith("# "):
            listed = sentences.setdefault(line.removeprefix("# "), [])
        else:
            listed.append(line)

    def drawn(language: str) -> str:
        known = sentences[language]
        return known[int(draw() ** 1.5 * len(known))].replace("#", str(int(draw() * 60) ** 2 + 2))

    languages = [language for language, number in DOCUMENTS.items() for _ in range(number)]
    languages.sort(key=lambda _: draw())
    return [(language, [drawn(language) for _ in range(1 + int(draw() * 12))]) for language in languages]


def _near_copies(documents: list[Document]) -> list[Document]:
    """Return long documents with one more sentence, and some of those with two more."""
    long = [(language, sentences) for language, sentences in documents if len(sentences) > 8]
    longer = [(language, [*sentences, sentences[0]]) for language, sentences in long[::2]]
    return longer + [(language, [*sentences, sentences[3]]) for language, sentences in longer[::2]]


def _chain(documents: list[Document]) -> list[Document]:
    """Return documents that are near-copies of their neighbors alone, so that only together they are one group."""
    sentences = [sentence for _, drawn in _of("en", documents) for sentence in drawn]
    return [("en", sentences[start : start + 14]) for start in range(40)]


def _text(document: Document) -> str:
    language, sentences = document
    return ("" if language in UNSPACED else " ").join(sentences)


def _of(language: str, documents: list[Document]) -> list[Document]:
    return [document for document in documents if document[0] == language]


def _blank_lines(documents: list[Document]) -> str:
    return "\n\n".join(map(_text, documents)) + "\n"


def _lines(documents: list[Document]) -> str:
    return "".join(_text(document) + "\n" for document in documents)


def _json_lines(documents: list[Document], key: str = "text") -> str:
    fields = ({key: _text(document), "source": document[0]} for document in documents)
    return "".join(json.dumps(each, ensure_ascii=number % 2 == 0) + "\n" for number, each in enumerate(fields))


def _wiki(documents: list[Document]) -> str:
    def article(number: int, document: Document) -> str:
        title = f"{document[0].upper()} & {number}"
        head = f'<doc id="{number}" url="https://example.org/wiki?curid={number}" title="{html.escape(title)}">'
        return f"{head}\n{title}\n\n{html.escape(_text(document), quote=False)}\n</doc>\n"

    return "".join(article(number, document) for number, document in enumerate(documents))


def _write_parquet(path: Path, column: str, documents: list[Document]) -> None:
    columns = {column: list(map(_text, documents)), "source": [language for language, _ in documents]}
    pq.write_table(pa.table(columns), path, row_group_size=30, compression="snappy")


def _write_plain(folder: Path, documents: list[Document]) -> None:
    """Write plain text with all that cleaning changes, lines without blank ones, whole files, and a large file."""
    english = _of("en", documents)
    odd = [
        "A cafe\u0301 with two\u00a0kinds of\u2003space.\r\nNUL\x00 and \ufeff marks\x0b go.",
        "Encoded: " + "QUJD" * 700 + " is left out.",
        "Many marks: a" + "\u0301" * 40 + " stay few.",
        "emoji \U0001f469\u200d\U0001f4bb joins; \u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 too.",
    ]
    plain = _blank_lines(english).replace("; ", ";\n") + "\n" + "\n \n".join(odd) + "\n"
    (folder / "plain.txt").write_bytes(plain.encode())
    (folder / "lines.txt").write_text(_lines(documents))

    for number in range(7):
        sentences = "\n".join(sentence for document in english[number::7] for sentence in document[1])
        (folder / f"files/{number}.txt").write_text(sentences)

    numbered = (f"{_text(document)} Copy {copy}." for copy in range(26) for document in english)
    (folder / "large.txt").write_text("\n\n".join(numbered))


def _write_languages(folder: Path, documents: list[Document]) -> None:
    (folder / "french.txt").write_bytes(_blank_lines(_of("fr", documents)).encode("cp1252"))
    (folder / "german.txt").write_bytes(_blank_lines(_of("de", documents)).replace("\u201e", '"').encode("utf-16"))
    french = _blank_lines(_of("fr", documents)).encode().replace("î".encode(), b"\xee")
    (folder / "damaged.txt").write_bytes(french)

    (folder / "hindi.txt").write_text(_blank_lines(_of("hi", documents)))
    long_lines = [document for document in _of("ru", documents) if len(_text(document)) > 100]
    (folder / "russian.txt").write_text(_lines(long_lines * 10))
    chinese = _of("zh", documents)
    (folder / "chinese.txt").write_text(_blank_lines([*chinese, *_near_copies(chinese * 2)]))


def _write_records(folder: Path, documents: list[Document]) -> None:
    """Write JSON lines of many sources, and lines that are refused for each reason."""
    refused = ['["no object"]', '{"body": 7}', '{"body": "ends', '{"text": "other key"}', " ", "no JSON"]
    lines = []
    for number, document in enumerate(documents):
        lines.append(json.dumps({"source": f"site {number % 70:02d}", "body": _text(document)}, ensure_ascii=False))
        if number % 30 == 10:
            lines.append(refused[number // 30 % len(refused)])
    (folder / "records.jsonl").write_text("\n".join(lines))


def _write_compressed(folder: Path, corpus: list[Document]) -> None:
    """Write files of many gzip members, bzip2 streams and zstd frames."""

    def compressed(compress: Callable[[bytes], bytes], write: Callable[[list[Document]], str]) -> bytes:
        starts = range(0, len(corpus), FRAME_DOCUMENTS)
        return b"".join(compress(write(corpus[start : start + FRAME_DOCUMENTS]).encode()) for start in starts)

    member = compressed(lambda data: gzip.compress(data, mtime=0), _json_lines)
    (folder / "members.jsonl.gz").write_bytes(member)
    stream = compressed(bz2.compress, lambda documents: _blank_lines(documents) + "\n")
    (folder / "blocks.txt.bz2").write_bytes(stream)
    frame = compressed(zstandard.ZstdCompressor(write_content_size=False).compress, _lines)
    (folder / "frames.txt.zst").write_bytes(frame)


def _write_mixed(folder: Path, documents: list[Document]) -> None:
    """Write a folder of every format and compression."""
    (folder / "a.txt").write_text(_blank_lines(documents[0::8]))
    (folder / "b.jsonl").write_text(_json_lines(documents[1::8]))
    _write_parquet(folder / "c.parquet", "text", documents[2::8])
    (folder / "inner/d.jsonl.gz").write_bytes(gzip.compress(_json_lines(documents[3::8]).encode(), mtime=0))
    (folder / "inner/e.txt.xz").write_bytes(lzma.compress(_blank_lines(documents[4::8]).encode()))
    (folder / "inner/f.txt.bz2").write_bytes(bz2.compress(_blank_lines(documents[5::8]).encode()))
    (folder / "g.ndjson.zst").write_bytes(zstandard.compress(_json_lines(documents[6::8]).encode()))
    (folder / "wiki_00").write_text(_wiki(documents[7::8]))
