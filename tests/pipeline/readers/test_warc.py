"""WARC and WET files: every record is read once, as a document or with a reason, wherever the file is cut."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.readers import cut_files
from pipeline.readers.record import MAX_RECORD, Record, RecordOptions, Rejected, too_long_reason
from pipeline.readers.table import read_records
from pipeline.readers.warc import (
    IN_SEGMENTS,
    OTHER_STATUS,
    OTHER_TYPE,
    PLAIN_RESPONSE,
    REVISIT,
    begins_with_one_record,
    parse_response,
)
from schemas.errors import DataError
from schemas.manifest import read_manifest
from tests.conftest import Command, made
from tests.pipeline.readers.input_files import whole_range
from tests.pipeline.readers.test_cut_files import all_of, bgzf, in_ranges, without_places
from tests.pipeline.readers.web_files import (
    REQUEST,
    SOME_SECONDS,
    WARCINFO,
    http,
    members,
    min_seconds,
    page,
    paragraphs,
    record,
    response,
    wet,
)

pytest.importorskip("trafilatura")

OPTIONS = RecordOptions("text", "blank_line")


def read(path: Path, data: bytes, options: RecordOptions = OPTIONS) -> list[Record | Rejected]:
    path.write_bytes(data)
    return list(read_records(whole_range(path, "warc"), options))


def outcome(found: Record | Rejected) -> str:
    return found.reason if isinstance(found, Rejected) else found.text


# ---- What becomes a document ----

HTML = page(1).encode()
TEXT = "\n\n".join(paragraphs(1))
CHUNKED = b"".join(b"%x;a=b\r\n%b\r\n" % (len(HTML[at : at + 700]), HTML[at : at + 700]) for at in range(0, 9999, 700))
DAMAGED_CHUNKS = CHUNKED.replace(b"2bc;", b"zzz;").replace(b"zzz;", b"2bc;", 1)
DAMAGED = "content encoding that is damaged"
RAW_DEFLATE = zlib.compress(HTML)[2:-4]
RESOURCE = record("resource", "text/html; charset=utf-8", HTML)

PAGES = [
    ("plain", response(http(HTML)), TEXT),
    ("xhtml", response(http(HTML, content_type="application/xhtml+xml; charset=UTF-8")), TEXT),
    ("lone-line-feeds", response(http(HTML).replace(b"\r\n", b"\n")), TEXT),
    ("gzip", response(http(gzip.compress(HTML), "Content-Encoding: gzip")), TEXT),
    ("gzip-of-two-members", response(http(members(HTML[:99], HTML[99:]), "content-encoding: x-gzip")), TEXT),
    ("gzip-already-removed", response(http(HTML, "Content-Encoding: gzip")), TEXT),
    ("deflate", response(http(zlib.compress(HTML), "Content-Encoding: deflate")), TEXT),
    ("deflate-without-a-header", response(http(RAW_DEFLATE, "Content-Encoding: deflate")), TEXT),
    ("chunked", response(http(CHUNKED, "Transfer-Encoding: chunked")), TEXT),
    ("chunked-already-removed", response(http(HTML, "Transfer-Encoding: chunked")), TEXT),
    ("resource", RESOURCE, TEXT),
    ("resource-of-text", record("resource", "text/plain; charset=cp1252", "Café.".encode("cp1252")), "Café."),
    ("conversion", wet("One line.\nAnother."), "One line.\n\nAnother."),
    ("folded-field", RESOURCE.replace(b"WARC-Target", b"X: y\r\n z\r\nWARC-Target"), TEXT),
    ("not-found", response(http(HTML, status="404 Not Found")), OTHER_STATUS),
    ("image", response(http(b"\x89PNG", content_type="image/png")), OTHER_TYPE),
    ("plain", response(http(b"User-agent: *", content_type="text/plain; charset=utf-8")), PLAIN_RESPONSE),
    ("no-type", response(b"HTTP/1.1 200 OK\r\n\r\n" + HTML), OTHER_TYPE),
    ("dns", record("response", "text/dns", b"x.org. 1 IN A 1.2.3.4"), OTHER_TYPE),
    ("revisit", record("revisit", "application/http", http(b"")), REVISIT),
    ("segments", response(http(HTML), "WARC-Segment-Number: 1"), IN_SEGMENTS),
    ("continuation", record("continuation", "application/http", HTML), IN_SEGMENTS),
    ("brotli", response(http(b"\x0b\x02", "Content-Encoding: br")), "content encoding other than gzip and deflate"),
    ("gzip-damaged", response(http(gzip.compress(HTML)[:30] + b"x" * 200, "Content-Encoding: gzip")), DAMAGED),
    ("chunks-damaged", response(http(DAMAGED_CHUNKS, "Transfer-Encoding: chunked")), DAMAGED),
    ("too-many-codings", response(http(b" <p>", "Content-Encoding: " + "deflate," * 9)), DAMAGED),
    ("long-header", response(http(HTML, f"X: {'x' * (1 << 20)}")), "HTTP header that cannot be parsed"),
    ("header-without-an-end", response(http(b"", f"X: {'x' * 3000}").rstrip()), "page without main text"),
    ("no-http", response(b"hello"), "HTTP header that cannot be parsed"),
    ("empty-body", response(http(b"")), "page without main text"),
    ("bomb", response(http(gzip.compress(b"<p>" * (8 << 20)), "Content-Encoding: gzip")), too_long_reason(MAX_RECORD)),
    ("long", response(http(b"<p>" * (8 << 20))), too_long_reason(MAX_RECORD)),
    ("long-image", response(http(b"\xff" * (20 << 20), content_type="image/png")), OTHER_TYPE),
]


@pytest.mark.parametrize(("data", "expected"), [pytest.param(*case[1:], id=case[0]) for case in PAGES])
@pytest.mark.parametrize("name", ["x.warc", "x.warc.gz"])
def test_a_record_becomes_a_document_or_a_reason(tmp_path: Path, name: str, data: bytes, expected: str) -> None:
    """The records around it are read in any case, and those that hold no page are not counted."""
    records = [WARCINFO, REQUEST, data.replace(b"http://x.org/", b"<http://x.org/a>"), wet("The end.")]
    found = read(tmp_path / name, members(*records) if name.endswith(".gz") else b"".join(records))
    assert list(map(outcome, found)) == [expected, "The end."]
    assert {each.source for each in found} == {"web"}
    if isinstance(found[0], Rejected):
        assert found[0].excerpt == "http://x.org/a"


LONG = [
    ("charset", lambda size: http(HTML, content_type=f"text/html; charset={' ' * size}!")),
    ("folded-field", lambda size: http(HTML, "X: y" + "\r\n z" * size * 8)),
    ("gzip-members", lambda size: http(gzip.compress(b"") * size * 8, "Content-Encoding: gzip")),
    ("chunks", lambda size: http(b"1\r\nx\r\n" * size, "Transfer-Encoding: chunked")),
]


@pytest.mark.parametrize("block", [pytest.param(case[1], id=case[0]) for case in LONG])
def test_what_a_server_sends_is_read_in_time_that_its_size_bounds(tmp_path: Path, block) -> None:
    """Of four times the size, in less than eight times the time; sixteen times would be its square."""
    small, large = (response(block(size)) for size in (4000, 16_000))
    least = min_seconds(lambda: read(tmp_path / "x.warc", small))
    assert min_seconds(lambda: read(tmp_path / "x.warc", large)) < 8 * least + SOME_SECONDS


def test_the_header_of_a_compressed_record_is_found_in_time_that_its_size_bounds(tmp_path: Path) -> None:
    def begin(lines: int) -> float:
        path = tmp_path / f"{lines}.warc.gz"
        path.write_bytes(members(record("conversion", "text/plain", b"x", *["a: b"] * lines)))
        file = whole_range(path, "warc").file
        return min_seconds(lambda: begins_with_one_record.__wrapped__(file, str(path), "gzip"))

    assert begin(128_000) < 8 * begin(32_000) + SOME_SECONDS


@pytest.mark.parametrize("cut", range(1, 400, 7))
def test_a_record_that_the_end_cuts_off_is_an_error(tmp_path: Path, cut: int) -> None:
    data = wet("One. " * 30) + wet("Two. " * 50)
    cut = min(cut, len(wet("Two. " * 50)) - 1)
    if cut <= 4:  # only the line ends behind it
        assert len(read(tmp_path / "x.warc", data[:-cut])) == 2
        return
    with pytest.raises(
        DataError, match=r"x\.warc cannot be read to its end \(the WARC record that begins at byte 2\d\d"
    ):
        read(tmp_path / "x.warc", data[:-cut])


@pytest.mark.parametrize(
    "damage",
    [
        (b"WARC/1.0", b"WORC/1.0"),
        (b"Length: 150", b"Length: 140"),
        (b"Length: 150", b"Length: x"),
        (b"Length: ", b"L: "),
    ],
)
@pytest.mark.parametrize("name", ["x.warc", "x.warc.gz"])
def test_a_record_where_none_begins_is_an_error(tmp_path: Path, name: str, damage: tuple[bytes, bytes]) -> None:
    records = [wet("Whole."), wet("One. " * 30).replace(*damage), wet("Two. " * 50)]
    with pytest.raises(DataError, match=r"x\.warc.* is damaged: no WARC record begins at byte \d+, where one should"):
        read(tmp_path / name, members(*records) if name.endswith(".gz") else b"".join(records))


# ---- Cuts ----

PIECE_OF_WARC = st.one_of(
    st.text("ab \n\r", max_size=80).map(wet),
    st.sampled_from([WARCINFO, REQUEST, wet("WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 0\r\n\r\n")]),
    st.sampled_from([response(http(b"", status="301 Moved")), response(http(b"<p>")), wet("\x1f\x8b\x08\x00")]),
)


@given(
    parts=st.lists(PIECE_OF_WARC, min_size=1, max_size=25),
    cuts=st.lists(st.integers(1, 3000), max_size=8),
    frames=st.sampled_from([gzip.compress, bgzf, lambda data: gzip.compress(data, 0), zstandard.compress]),
    one_frame=st.booleans(),
)
@settings(max_examples=60)
def test_every_record_comes_out_once_wherever_the_file_is_cut(tmp_path_factory, parts, cuts, frames, one_frame) -> None:
    """Also from a file whose frames do not begin with records, which its first range reads."""
    suffix = ".zst" if frames is zstandard.compress else ".gz"
    path = tmp_path_factory.mktemp("cut") / f"x.warc{suffix}"
    text = b"".join(parts)
    ranges = [text[at : at + 50] for at in range(0, len(text), 50)] if one_frame else parts
    path.write_bytes(b"".join(map(frames, ranges)))

    whole = whole_range(path, "warc")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cut_files, "CELL_BYTES", 64)
        patched.setattr(cut_files, "SEARCH_BYTES", 40)
        found = in_ranges(whole, "blank_line", cuts)
    expected = list(read_records(whole, OPTIONS))
    assert without_places(all_of(found)) == without_places(expected)
    documents = [each for each in parts if b"Type: conversion" in each[:40]]
    assert sum(isinstance(each, Record) for each in expected) == len(documents)
    if one_frame and len(parts) > 1:
        assert not any(found[1:])


def test_ranges_share_the_work_and_damage_in_the_middle_is_an_error(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(cut_files, "CELL_BYTES", 1 << 12)
    monkeypatch.setattr(cut_files, "SEARCH_BYTES", 1 << 11)
    path = tmp_path / "x.warc.gz"
    records = [wet(" ".join(paragraphs(number)), f"http://x.org/{number}") for number in range(200)]
    path.write_bytes(members(WARCINFO, *records))
    whole = whole_range(path, "warc")
    cuts = list(range(1 << 12, whole.size, 1 << 12))
    found = in_ranges(whole, "blank_line", cuts)
    assert sum(map(bool, found)) > len(found) / 2 > 3
    assert list(map(outcome, all_of(found))) == [" ".join(paragraphs(number)) for number in range(200)]

    # A record in two members, wherever the file is cut.
    middle = gzip.compress(records[100][:300]) + gzip.compress(records[100][300:])
    path.write_bytes(members(WARCINFO, *records[:100]) + middle + members(*records[101:]))
    second = len(members(WARCINFO, *records[:100])) + len(gzip.compress(records[100][:300]))
    monkeypatch.setattr(cut_files, "is_cut_point", lambda start: start == second)
    monkeypatch.setattr(cut_files, "check_next_cut_point", lambda *_: None)
    with pytest.raises(DataError, match="no WARC record begins at byte"):
        in_ranges(whole_range(path, "warc"), "blank_line", [second - 10])


# ---- The command ----


def test_a_crawl_of_which_most_is_left_out_by_rule_is_no_damage(command, tmp_path: Path) -> None:
    left_out = [
        response(http(b"", status="404 Not Found")),
        response(http(b"\x89PNG", content_type="image/png")),
        response(http(b"<html><body></body></html>")),
    ]
    pages = [response(http(page(number).encode()), uri=f"http://x.org/{number}") for number in range(3)]
    path = tmp_path / "crawl.warc.gz"
    path.write_bytes(members(WARCINFO, *left_out * 4, *pages))

    done = command("shard", "--input", path, "--output", tmp_path / "text")
    assert done.returncode == 0, done.stderr
    for reason in (OTHER_STATUS, OTHER_TYPE, "page without main text"):
        assert f"left out: 4 x {reason} (web)\n" in done.stdout
    assert "3 documents" in done.stdout
    assert not (tmp_path / "text" / "rejected").exists()

    # Damage still counts, and the page can be found.
    path.write_bytes(members(WARCINFO, *pages, response(b"hello", uri="http://x.org/bad")))
    done = command("shard", "--input", path, "--output", tmp_path / "bad")
    assert done.returncode == 3
    assert "HTTP header that cannot be parsed" in done.stderr and "'http://x.org/bad'" in done.stderr

    made(command, tmp_path / "bad", "shard", "--input", path, "--max_bad_ratio", 0.5)
    (listed,) = (tmp_path / "bad" / "rejected").glob("*.jsonl")
    assert json.loads(listed.read_text())["shown"] == "http://x.org/bad"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_pages_are_read_in_the_encoding_that_they_name(command, tmp_path: Path, encoding: str) -> None:
    """Whatever --encoding is, and although the file as a whole is in none."""
    pages = [
        response(http(page(1).replace("town", "Straße").encode("cp1252"), content_type="text/html; charset=cp1252")),
        response(http(page(2).replace("town", "улица").encode("koi8-r"), content_type="text/html; charset=koi8-r")),
        response(http(page(3).replace("town", "通り").encode("shift_jis"), content_type="text/html; charset=sjis")),
    ]
    path = tmp_path / "crawl.warc.gz"
    path.write_bytes(members(*pages * 5))
    done = command("shard", "--input", path, "--output", tmp_path / "text", "--encoding", encoding)
    assert done.returncode == 0, done.stderr
    shown = command("inspect", tmp_path / "text", "--rows", 15).stdout
    assert all(word in shown for word in ("Straße", "улица", "通り")) and "undecodable" not in done.stdout


def test_texts_with_many_undecodable_bytes_are_refused_without_advice_to_name_an_encoding(command, tmp_path) -> None:
    path = tmp_path / "x.warc.wet"
    text = wet("Caf\u00e9 noir. " * 50).replace("\u00e9".encode(), b"\xe9\xe9")  # of the same length
    path.write_bytes(text * 3)
    done = command("shard", "--input", path, "--output", tmp_path / "text")
    assert done.returncode == 3
    assert "x.warc.wet is not in the encodings that its pages name: at least 300 of about" in done.stderr
    assert "raise --max_undecodable_ratio" in done.stderr and "--encoding" not in done.stderr

    done = command("shard", "--input", path, "--output", tmp_path / "text", "--max_undecodable_ratio", 1)
    assert done.returncode == 0 and "--encoding" not in done.stderr


def test_blocks_of_similar_width_are_not_wrapped_lines(command: Command, tmp_path: Path) -> None:
    """Three lines of advertisements without full stops."""
    ads = [
        "big summer sale of garden chairs for men",
        "cheap flights to london in the new year",
        "how to bake a cake at home in an hour",
    ]
    (tmp_path / "x.warc.wet").write_bytes(wet("\n".join(ads)))
    assert command("shard", "--input", tmp_path / "x.warc.wet", "--output", tmp_path / "text").returncode == 0
    assert read_manifest(str(tmp_path / "text"), "text").totals["sentences"] == 3


@pytest.mark.parametrize("blank", [b"\r\n \r\n", b"\r\n\t", b"\r\n\r\n"])
def test_a_line_of_spaces_continues_no_field_of_a_header(blank: bytes) -> None:
    response = b"HTTP/1.1 200 OK\r\nContent-Type: text/html" + blank + b"\r\n  <p>a</p>\r\n\r\n<p>b</p>"
    assert parse_response(response).fields["content-type"] == "text/html"
