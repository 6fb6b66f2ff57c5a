"""Files that tests give to `shard`: compressed, damaged, of one word, of columns, and texts of several languages."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from pipeline.readers.inputs import FileRange, plan_splits, with_format
from pipeline.readers.listing import matching_files
from pipeline.readers.open import compression_of
from pipeline.readers.record import Record, RecordOptions, Rejected
from pipeline.readers.table import read_records

PROSE = "The cat sat on the mat. It was happy there. The dog was not.\n"
FRENCH = "Café crème brûlée. Très bon, à l'hôtel où l'été fut décidé.\n" * 30
RUSSIAN = "Москва является столицей России. Вчера мы читали книгу о природе.\n" * 30
CHINESE = "北京是中国的首都。昨天我们读了一本关于自然的书，它很有意思，大家都喜欢。\n" * 30
JAPANESE = "東京は日本の首都です。昨日、私たちは自然についての本を読みました。\n" * 30
KOREAN = "서울은 대한민국의 수도이다. 어제 우리는 자연에 관한 책을 읽었고 아주 재미있었다.\n" * 30
POLISH = "Zażółć gęślą jaźń. Wczoraj był piękny dzień, a dziś jest później niż myśleliśmy.\n" * 30


def whole_range(path: Path, form: str) -> FileRange:
    """The range of all of a file in this format."""
    ((_, size, version),) = matching_files(str(path))
    compression = compression_of(str(path))
    return FileRange(str(path), 0, size, size, size, version, form, compression)  # type: ignore[arg-type]


def read(path: Path, text_key: str = "text", encoding: str = "utf-8", **limits: int) -> list[Record | Rejected]:
    """The records of a file, planned and read as `shard` does."""
    splits = plan_splits(matching_files(str(path)), "auto", encoding)
    options = RecordOptions(text_key, "line", **limits)
    ranges = [with_format(file_range) for split in splits for file_range in split.ranges]
    return [record for file_range in ranges for record in read_records(file_range, options)]


COMPRESS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
Make = Callable[[Path], list[object]]


def file_of(name: str, data: bytes, *flags: object) -> Make:
    """An input of one file with these bytes, and the flags to read it with."""

    def make(folder: Path) -> list[object]:
        (folder / name).write_bytes(data)
        return [folder / name, *flags]

    return make


def renamed(make: Make, name: str) -> Make:
    """The same input, with another name of its file."""

    def make_renamed(folder: Path) -> list[object]:
        path, *flags = make(folder)
        return [Path(str(path)).rename(folder / name), *flags]

    return make_renamed


HEADER = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <namespaces>
      <namespace key="1" case="first-letter">Talk</namespace>
    </namespaces>
  </siteinfo>
"""


def page(number: int, title: str, text: str, namespace: int = 0, model: str = "wikitext", redirect: str = "") -> str:
    """A page of a dump as mediawiki.org/wiki/Help:Export describes it."""
    target = f"    <redirect title={quoteattr(redirect)} />\n" if redirect else ""
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{namespace}</ns>
    <id>{number}</id>
{target}    <revision>
      <id>{number}</id>
      <contributor>
        <username>text</username>
      </contributor>
      <model>{model}</model>
      <format>text/x-wiki</format>
      <text bytes="{len(text.encode())}" xml:space="preserve">{escape(text)}</text>
      <sha1>x</sha1>
    </revision>
  </page>
"""


def dump(*pages: str) -> str:
    """A dump of MediaWiki."""
    return HEADER + "".join(pages) + "</mediawiki>\n"


def parquet(columns: dict[str, Any], names: list[str], *flags: object, **options) -> Make:
    def make(folder: Path) -> list[object]:
        arrays = [pa.array(column) for column in columns.values()]
        pq.write_table(pa.Table.from_arrays(arrays, names=names), folder / "x.parquet", **options)
        return [folder / "x.parquet", *flags]

    return make


def streams(suffix: str, damage: Callable[[list[bytes]], bytes]) -> Make:
    """An input of ten compressed streams one behind the other, damaged."""
    parts = [COMPRESS[suffix](PROSE.encode() * 20) for _ in range(10)]
    return file_of(f"many.txt{suffix}", damage(parts))


def flipped(stream: int) -> Callable[[list[bytes]], bytes]:
    def damage(parts: list[bytes]) -> bytes:
        data = bytearray(b"".join(parts))
        data[sum(map(len, parts[:stream]))] ^= 0x55
        return bytes(data)

    return damage


def one_word(character: bytes) -> Make:
    # Below the size from which worker processes are started.
    return file_of("x.txt", character * (3 << 20))
