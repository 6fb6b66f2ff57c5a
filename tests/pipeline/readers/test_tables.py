"""Tables as documents: CSV, Arrow files and streams, and several columns of text."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.readers import columnar, csv_rows
from pipeline.readers.csv_rows import LINE_END, OTHER_WIDTH, UNCLOSED
from pipeline.readers.record import Record, Rejected, too_long_reason
from pipeline.readers.table import remedy_of
from schemas.errors import DataError
from tests.clozeline.test_installation import run_without
from tests.pipeline.readers.input_files import read


def shown(records: list[Record | Rejected]) -> list[str]:
    return [record.text if isinstance(record, Record) else f"- {record.reason}" for record in records]


def written(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


# ---- CSV ----

TOO_LONG = too_long_reason(1 << 16)
FIELD = st.text(st.sampled_from('ab",;\t\n\r é\u2028\ufeff'), max_size=8) | st.text(max_size=20)


@example(rows=[('"\t\n', "")], delimiter="\t", line_end="\r\n", mark=False)
@given(
    rows=st.lists(st.tuples(FIELD, FIELD), max_size=12),
    delimiter=st.sampled_from(",;\t"),
    line_end=st.sampled_from(["\r\n", "\n"]),
    mark=st.booleans(),
)
def test_what_csv_writes_is_read_equal(tmp_path_factory, rows, delimiter: str, line_end: str, mark: bool) -> None:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator=line_end, quoting=csv.QUOTE_ALL)
    writer.writerow(["source", "text"])
    writer.writerows(rows)
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    path.write_bytes((("\ufeff" if mark else "") + buffer.getvalue()).encode(errors="replace"))

    plain = [[field.encode(errors="replace").decode() for field in row] for row in rows]
    assert read(path) == [Record(text, source or "csv") for source, text in plain]


@given(
    st.binary(max_size=200) | st.text(st.sampled_from('ab",\t\n'), max_size=60).map(str.encode),
    st.integers(4, 40),
    st.sampled_from([b",", b"\t"]),
)
def test_every_row_of_any_file_is_read_or_rejected_in_order(tmp_path_factory, data, limit: int, mark: bytes) -> None:
    path = written(tmp_path_factory.mktemp("csv") / "x.csv", b"text" + mark + b"b\n" + data)
    try:
        found = read(path, max_document_bytes=limit)
    except DataError:
        return
    places = [record.position for record in found]
    assert places == sorted(set(places)) and all(7 <= place < 7 + len(data) for place in places)
    assert bool(found) == bool(data)


def test_lines_after_an_unclosed_quote_are_rows_again(tmp_path: Path) -> None:
    rows = 'n,text\n1,a\n2,"b\n3,c\n4,"d ""e"" f"\n5,g\r\n\n6,"h\ni"\n7\n8,j,k\n9,l\rm\n10,n"o\n11,"p\n12,q\n'
    expected = ["a", f"- {UNCLOSED}", "c", 'd "e" f', "g", "- blank line", "h\ni", f"- {OTHER_WIDTH}"]
    expected += [f"- {OTHER_WIDTH}", f"- {LINE_END}", 'n"o', f"- {UNCLOSED}", "q"]
    found = read(written(tmp_path / "x.csv", rows))
    assert shown(found) == expected
    assert [rows[record.position :].split(",")[0] for record in found if isinstance(record, Record)] == [
        *("1", "3", "4", "5", "6", "10", "12")
    ]


@pytest.mark.parametrize(
    ("name", "head", "row"),
    [
        ("x.csv", "text;source", "a, b;web"),
        ("x.csv", "\ufefftext\tsource", "a, b\tweb"),
        ("x.csv", "n, text, source", '1, "a, b", web'),
        ("x.tsv", "a;b;source\ttext", "web\ta, b"),
        ("x.csv", "sep=;\ntext;n", "a, b;1"),
        ("x.csv", "\ufeffsep=|\r\ntext|source", "a, b|web"),
        ("x.csv", '"sep=\t"\nsource\ttext', "web\ta, b"),
        ("x.csv", "sep=;text", "web;a, b"),
        ("x.tab", '\n\n"source"\t"text"', "web\ta, b"),
    ],
)
def test_the_header_or_the_name_decides_the_delimiter(tmp_path: Path, name: str, head: str, row: str) -> None:
    (found,) = read(written(tmp_path / name, f"{head}\n{row}\n"))
    assert isinstance(found, Record) and found.text == "a, b" and found.source in ("web", "csv")


def test_csv_in_another_encoding_and_compressed(tmp_path: Path) -> None:
    rows = 'text,source\n"Café, ""crème""\nbrûlée",wéb\n'
    path = written(tmp_path / "x.csv.gz", gzip.compress(rows.encode("cp1252")))
    assert read(path, encoding="cp1252") == [Record('Café, "crème"\nbrûlée', "wéb")]
    path = written(tmp_path / "x.csv", rows.encode("utf-16"))
    assert read(path, encoding="utf-16") == [Record('Café, "crème"\nbrûlée', "wéb")]

    (damaged,) = read(written(tmp_path / "y.csv", b'text,n\n"a\n\xffb",1\n'))
    assert isinstance(damaged, Record) and damaged.text == "a\n\ufffdb" and damaged.undecodable is not None
    assert (damaged.undecodable.count, damaged.undecodable.first_offset) == (1, 10)


def test_a_row_above_the_limit_is_rejected_alone(tmp_path: Path) -> None:
    long = "word, word\n" * 600_000
    path = written(tmp_path / "x.csv", f'text,n\nbefore,1\n"{long}""",2\nafter,3\n{"x" * 2_000_000},4\nlast,5\n')
    found = read(path, max_document_bytes=1 << 16)
    assert shown(found) == ["before", f"- {TOO_LONG}", "after", f"- {TOO_LONG}", "last"]


@pytest.mark.parametrize("rows", ["a,1\n" * 5_000_000, 'x","y\n' * 200], ids=["no further quote", "many quotes"])
def test_an_unclosed_quote_that_hides_many_rows_is_an_error(tmp_path: Path, rows: str) -> None:
    path = written(tmp_path / "x.csv", f'text,n\na,1\n"b,2\n{rows}')
    with pytest.raises(DataError, match=r"x\.csv has a quote in the row at byte \d+ that is not closed"):
        read(path, max_document_bytes=1 << 20)


def test_an_unclosed_quote_at_the_end_of_a_file_hides_no_row(tmp_path: Path) -> None:
    found = shown(read(written(tmp_path / "x.csv", 'text,n\na,1\n"b,2\n' + "c,3\n" * 9)))
    assert found == ["a", f"- {UNCLOSED}", *["c"] * 9]
    assert "Double the quotes within fields" in remedy_of(UNCLOSED)


def test_columns_of_csv_are_checked_as_those_of_parquet(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "text,text,body\na,b,c\n")
    with pytest.raises(DataError, match="has 2 columns called 'text'"):
        read(path)
    with pytest.raises(DataError, match="has no text column 'title'; give --text_key one of text, text, body"):
        read(path, "title")
    assert read(written(tmp_path / "empty.csv", "")) == [] == read(written(tmp_path / "blank.csv", "\n\n"))


# ---- Arrow ----

TEXTS = [
    pa.array(["one", None, "three", "", "five"]),
    pa.array(["one", None, "three", "", "five"], pa.large_string()),
    pa.array(["one", None, "three", "", "five"], pa.string_view()),
    pa.array([b"one", None, b"\xff", b"", b"five"]),
    pa.array(["one", None, "one", "", "five"]).dictionary_encode(),
    pa.array([b"one", None, b"\xff\xfe", b"", b"five"]).view(pa.string()),
    pa.nulls(5),
]


@pytest.mark.parametrize("texts", TEXTS, ids=lambda texts: str(texts.type)[:20])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_arrow_files_and_streams_are_read_as_parquet(tmp_path: Path, texts: Any, compression: str | None) -> None:
    names = ["n", "text", "skipped", "source"]
    columns = [pa.array(range(5)), texts, pa.array([[1]] * 5), pa.array(["a", "b", None, "", "e"])]
    table = pa.table(columns, names)
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    for name in ("file.arrow", "stream.arrow", "data"):
        new = pa.ipc.new_file if name.startswith("file") else pa.ipc.new_stream
        with new(tmp_path / name, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=2)

    expected = [_without_form(record) for record in read(tmp_path / "x.parquet", max_document_bytes=4)]
    assert len(expected) == 5
    for name in ("file.arrow", "stream.arrow", "data"):
        assert [_without_form(record) for record in read(tmp_path / name, max_document_bytes=4)] == expected


def _without_form(record: Record | Rejected) -> tuple[Any, ...]:
    content = record.text if isinstance(record, Record) else record.reason
    source = "default" if record.source in ("parquet", "arrow") else record.source
    return type(record), content, source, record.position, record.size, record.undecodable


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_damaged_arrow_files_are_named_and_end_no_process(tmp_path: Path, new: Any) -> None:
    sources = pa.array(["a", "b"] * 50).dictionary_encode()
    table = pa.table({"text": [f"text {i}" for i in range(100)], "source": sources})
    path = tmp_path / "x.arrow"
    with new(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=30)
    data = path.read_bytes()
    whole = read(path)

    refused = 0
    for place in range(0, len(data), 13):
        path.write_bytes(data[:place] + b"\x7f" + data[place + 1 :])
        try:
            assert len(read(path)) <= len(whole)
        except DataError as error:
            refused += str(error).startswith(str(path))
    assert refused > 10

    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(DataError, match=r"x\.arrow (cannot be read to its end|is not a readable Arrow file)"):
        read(path)


def test_a_huge_batch_is_refused_before_it_fills_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"text": ["word " * 1000] * 100, "html": ["<p>" * 5000] * 100})
    for name, new in (("file.arrow", pa.ipc.new_file), ("stream.arrow", pa.ipc.new_stream)):
        with new(tmp_path / name, table.schema) as writer:
            writer.write_table(table)

    # Of a file, only the columns that are used are read.
    monkeypatch.setattr(columnar, "MAX_BATCH_BYTES", 1_000_000)
    assert len(read(tmp_path / "file.arrow")) == 100
    with pytest.raises(DataError, match=r"stream\.arrow has a record batch of 2,\d+,\d+ bytes.*max_chunksize"):
        read(tmp_path / "stream.arrow")


# ---- Several columns ----

ROWS = [
    ({"title": "A", "text": "B"}, "A\n\nB"),
    ({"title": None, "text": "B"}, "B"),
    ({"title": "A", "text": ""}, "A"),
    ({"title": "", "text": ""}, ""),
    ({"title": None, "text": None}, ""),
]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow", "csv"])
def test_several_columns_are_joined_as_paragraphs(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    rows = [row for row, _ in ROWS]
    table = pa.Table.from_pylist([row | {"a,b": "whole"} for row in rows])
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row | {"a,b": "whole"}) + "\n" for row in rows))
    elif suffix == "parquet":
        pq.write_table(table, path)
    elif suffix == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["title", "text", "a,b"], *([*row.values(), "whole"] for row in rows)])

    expected = [text for _, text in ROWS]
    if suffix == "csv":  # it has no nulls
        expected[-1] = ""
    assert shown(read(path, "title, text")) == expected
    assert shown(read(path, "a,b")) == ["whole"] * len(ROWS)
    alternatives = "body | body, title | title, text | a,b"  # the first of which all are there
    assert shown(read(path, alternatives)) == [text.replace("title, text", alternatives) for text in expected]
    if suffix == "jsonl":
        first, *_ = read(path, "x,y")
        assert isinstance(first, Rejected) and first.keys == ("a,b", "title", "text")
    else:
        with pytest.raises(DataError, match=r"has no text column 'titel'; give --text_key one of title, text, a,b"):
            read(path, "titel,text")


def test_json_takes_the_first_key_with_text(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    empty = ["", None, 5, [5]]
    path.write_text(
        "".join(json.dumps({"text": text, "body": "B"}) + "\n" for text in ["A", *empty]) + '{"text": ""}\n'
    )
    assert shown(read(path, "text|body")) == ["A", "B", "B", "B", "B", ""]
    assert shown(read(path, "text"))[:2] == ["A", ""]


def test_the_joined_text_counts_for_the_limit(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["12345", "1"], "b": ["12345", "2"]}), tmp_path / "x.parquet")
    assert shown(read(tmp_path / "x.parquet", "a,b", max_document_bytes=9)) == ["- record above 9 bytes", "1\n\n2"]


def test_a_column_of_nanoseconds_is_no_fault_without_pandas(tmp_path: Path) -> None:
    """Python has no type for them, and pyarrow takes that of pandas, which a user may not have."""
    table = pa.table({"text": ["A b."], "source": pa.array([7], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "x.parquet")
    done = run_without("pandas", "shard", "--input", f"{tmp_path}/x.parquet", "--output", f"{tmp_path}/text")
    assert done.returncode == 0 and "1 document," in done.stdout, done.stderr


QUOTED = 'text\tlabel\n"He said ""no"".\nThen he left."\t1\n'
PLAIN = 'text\tlabel\n"No" is what he said.\t1\nA 5" disk, "they\t2\n'


def test_quotes_of_tsv_are_characters_where_the_first_rows_make_no_sense_otherwise(tmp_path: Path) -> None:
    assert shown(read(written(tmp_path / "a.tsv", QUOTED))) == ['He said "no".\nThen he left.']
    assert shown(read(written(tmp_path / "b.tsv", PLAIN))) == ['"No" is what he said.', 'A 5" disk, "they']


def test_damage_among_fields_in_quotes_does_not_end_their_quoting(tmp_path: Path) -> None:
    rows = "".join(f'{number}\t"quoted, ""x"" {number}"\n' for number in range(50))
    found = shown(read(written(tmp_path / "a.tsv", f'id\ttext\n{rows}51\t"never closed\n52\tplain\n53\t"a" b\n')))
    assert found[:50] == [f'quoted, "x" {number}' for number in range(50)] and "plain" in found

    long = "".join(f'"Line one of {number}.\nAnd two."\n' for number in range(4000))
    assert shown(read(written(tmp_path / "b.tsv", f"text\n{long}")))[3999] == "Line one of 3999.\nAnd two."


def test_a_long_row_without_quoting_is_skipped_alone(tmp_path: Path) -> None:
    plain = "".join(f'{number}\t"No" is {number}\n' for number in range(9))
    path = written(tmp_path / "a.tsv", f'id\ttext\n{plain}10\t"{"x" * 500}\n11\tafter\n')
    assert shown(read(path, max_document_bytes=200))[-2:] == [f"- {too_long_reason(200)}", "after"]


def test_open_quotes_in_rows_of_tsv_join_no_rows(tmp_path: Path) -> None:
    rows = [f"{number}\tHe left us {number}." for number in range(99)]
    rows[3::10] = [f'{number}\t"Come here at once.' for number in range(3, 99, 10)]
    rows[6::10] = [f'{number}\tHe left us."' for number in range(6, 99, 10)]
    found = shown(read(written(tmp_path / "a.tsv", "id\ttext\n" + "\n".join(rows) + "\n")))
    assert len(found) == 99 and found[3] == '"Come here at once.'


def test_a_quote_that_is_not_closed_is_a_character_in_a_whole_row_of_tsv(tmp_path: Path) -> None:
    quoted = '"He said ""no"".\nThen he left."\t1\n"a" b\t1\n'
    rows = "A film.\t1\n" * 9300 + '"What a film ! he said\t0\n' * 200 + quoted + '"cut off\n"one more\t0\r\nlast\t1\n'
    found = shown(read(written(tmp_path / "a.tsv", f"text\tn\n{rows}")))
    assert found[:9500] == ["A film."] * 9300 + ['"What a film ! he said'] * 200
    assert found[9500:] == ['He said "no".\nThen he left.', '"a" b', f"- {UNCLOSED}", '"one more', "last"]


def test_a_quote_of_tsv_that_no_other_one_follows_hides_no_row(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(csv_rows, "MAX_RECORD", 70_000)
    many = "A film.\t1\n" * 9300
    path = written(tmp_path / "a.tsv", f'text\tn\n{many}"{"x" * 500}\t0\n{many}"B\t1\n{many}"C\n{many}')
    with pytest.raises(DataError, match=r"a\.tsv has a quote in the row at byte 279,516 that is not closed"):
        read(path, max_document_bytes=400)  # "C is no whole row
    found = shown(read(written(path, path.read_text().replace('"C', '"C\t1')), max_document_bytes=400))
    assert found[9299:9302] == ["A film.", f"- {too_long_reason(400)}", "A film."]
    assert found[18600:18603] == ["A film.", '"B', "A film."] and found[27902] == '"C' and len(found) == 4 * 9300 + 3


@pytest.mark.parametrize("size", [25, 50, 75])
def test_where_the_head_of_a_table_ends_does_not_show(size: int, tmp_path: Path) -> None:
    """Also within a field over several lines."""
    field = '"He came in, number {}.\n""Hello,"" she said.\n""Good day,"" said he."\n'
    rows = "".join(field.format(number) for number in range(3000))
    found = read(written(tmp_path / "a.tsv", f'text\n"{"x" * size}"\n{rows}'))
    assert len(found) == 3001 and all(isinstance(record, Record) for record in found)
