"""Tables of any fields come back as they were written, and any bytes at all give rows or one line of error."""

from __future__ import annotations

import csv
import io
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import DataError, UsageError
from tests.trainer.finetune.tasks import data_of
from trainer.finetune.examples import TagExample, TextExample
from trainer.finetune.files.json_files import read_json_lines
from trainer.finetune.files.tables import read_conll, read_table

# Each case writes a file, for which a busy machine may need longer than hypothesis allows.
UNTIMED = settings(max_examples=60)

PLAIN_FIELD = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), max_size=8)
ANY_FIELD = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def rows_of(field: st.SearchStrategy[str]) -> st.SearchStrategy[list[list[str]]]:
    return st.integers(2, 4).flatmap(
        lambda width: st.lists(st.lists(field, min_size=width, max_size=width), min_size=1)
    )


def read_back(text: str, separator: str, quotes: bool, width: int) -> list[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table"
        path.write_bytes(text.encode())
        records = read_table(str(path), separator, quotes, False, dict.fromkeys(range(width), True))
    assert all(record.fault is None for record in records)
    return [list(record.values.values()) for record in records]


@UNTIMED
@given(rows_of(PLAIN_FIELD), st.sampled_from(["\n", "\r\n"]))
def test_plain_fields_may_hold_anything_but_tabs_and_line_ends(rows: list[list[str]], end: str) -> None:
    text = "".join("\t".join(row) + end for row in rows)
    # A byte order mark at the very beginning of a file is not text.
    expected = [list(row) for row in rows]
    expected[0][0] = expected[0][0].removeprefix("\ufeff")
    assert read_back(text, "\t", False, len(rows[0])) == expected


@UNTIMED
@given(rows_of(ANY_FIELD), st.sampled_from([",", "\t"]))
def test_quoted_fields_may_hold_anything(rows: list[list[str]], separator: str) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL).writerows(rows)
    assert read_back(file.getvalue(), separator, True, len(rows[0])) == rows


@UNTIMED
@given(rows_of(PLAIN_FIELD), st.data())
def test_rows_of_another_length_have_a_fault(rows: list[list[str]], data: st.DataObject) -> None:
    broken = data.draw(st.integers(1, len(rows)))
    fields = data.draw(st.integers(1, 6).filter(lambda count: count != len(rows[0])))
    header = [f"c{number}" for number in range(len(rows[0]))]
    lines = [*rows[: broken - 1], ["x"] * fields, *rows[broken - 1 :]]
    text = "".join("\t".join(row) + "\n" for row in [header, *lines])

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table"
        path.write_bytes(text.encode())
        records = read_table(str(path), "\t", False, True, {"c1": True})

    faults = [(record.place.rpartition(" ")[2], record.fault) for record in records if record.fault]
    held = "1 field" if fields == 1 else f"{fields} fields"
    cause = "too few tabs" if fields < len(header) else "too many tabs"
    assert faults == [(str(broken + 1), f"{held}, expected {len(header)}: {cause}")]


@UNTIMED
@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_one_line_of_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "file")
        Path(path).write_bytes(content)
        readers = [
            lambda: read_table(path, "\t", False, False, {0: True}),
            lambda: read_table(path, ",", True, True, {0: True}),
            lambda: read_conll(path, {0: True, -1: True}),
            lambda: read_json_lines(path, {"text": True}),
        ]
        for reader in readers:
            try:
                reader()
            except DataError as error:
                assert "\n" not in str(error)
                assert path in str(error)


def sizes_of(folder: Path, rows: str, **data: object) -> int:
    """The number of training examples of a table that holds its texts in column 0, and its labels in column 1."""
    (folder / "rows.tsv").write_text(rows)
    return len(data_of(folder, "sentence", "rows.tsv", columns={"text": 0, "label": 1}, **data).train)


def test_a_first_row_that_looks_like_an_example_is_not_lost_as_a_header(tmp_path: Path) -> None:
    for rows, labels in (("a\tgood\nb\tbad\nc\tgood\n", None), ("a\t1.5\nb\t2\nc\t3\n", "number")):
        chosen = {} if labels is None else {"labels": labels}
        with pytest.raises(UsageError, match=r"rows.tsv line 1: .* Set data.header = false if .*, or true if"):
            sizes_of(tmp_path, rows, **chosen)
        assert sizes_of(tmp_path, rows, header=False, **chosen) == 3
        assert sizes_of(tmp_path, rows, header=True, **chosen) == 2

    assert sizes_of(tmp_path, "0\t1\na\t0\nb\t1\n") == 2  # a header, as pandas writes it
    assert sizes_of(tmp_path, "text\tlabel\na\tgood\nb\tbad\n") == 2
    assert sizes_of(tmp_path, "text\tscore\na\t1.5\nb\t2\n", labels="number") == 2


CONLLU = """# sent_id = 1
1-2\tIm\t_\t_\t_\t_\t_\t_\t_\t_
1\tIn\tin\tADP\t_\t_\t3\tcase\t_\t_
2\tdem\tder\tDET\t_\t_\t3\tdet\t_\t_
2.1\tleer\tleer\tADJ\t_\t_\t_\t_\t_\t_
3\t#\t#\tNOUN\t_\t_\t0\troot\t_\t_

# sent_id = 2
# text = Ja
1\tJa\tja\tINTJ\t_\t_\t0\troot\t_\t_
"""


def test_conllu_has_comments_ranges_and_empty_nodes_that_are_no_words(tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU)
    data = data_of(tmp_path, "tags", "a.conllu")
    found = [example for example in data.train if isinstance(example, TagExample)]
    assert [(example.words, [data.labels[tag] for tag in example.tags or ()]) for example in found] == [
        (("In", "dem", "#"), ["ADP", "DET", "NOUN"]),
        (("Ja",), ["INTJ"]),
    ]

    with pytest.raises(DataError, match=r"a.conllu line 3: .* column 0 .* columns = { words = 1, tags = 3 }"):
        read_conll(str(tmp_path / "a.conllu"), {0: True, -1: True})
    (tmp_path / "b.conll").write_text(f"1990{' x' * 8} O\nJohn{' x' * 8} B-PER\n")  # ten columns of another kind
    assert [record.values[0] for record in read_conll(str(tmp_path / "b.conll"), {0: True})] == [["1990", "John"]]
    (tmp_path / "a.conll").write_text("# O\na O\n")
    assert [record.values[0] for record in read_conll(str(tmp_path / "a.conll"), {0: True})] == [["#", "a"]]


def test_csv_whose_header_has_semicolons_is_read_by_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text;label\nHe said "no", then left; gone, all;x\n"a; b, c";y\n')
    with pytest.raises(DataError, match=r"a.csv line 2: 3 fields, expected 2: too many semicolons, or a field"):
        data_of(tmp_path, "sentence", "a.csv")
    (tmp_path / "a.csv").write_text('text;label\nHe said "no", then left;x\n"a; b, c";y\n')
    data = data_of(tmp_path, "sentence", "a.csv")
    assert [example.text for example in data.train if isinstance(example, TextExample)] == [
        'He said "no", then left',
        "a; b, c",
    ]


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("a.csv", 'text\tlabel\na "b" c\tx\n"a" b\ty\n', 'If tabs separate them here, set data.format = "tsv"'),
        ("a.csv", 'text|label\n"a" b|x\n', "If vertical bars separate them here, write commas in their place"),
        ("a.tsv", "text,label\na,x\nb\tb,y\n", 'If commas separate them here, set data.format = "csv"'),
        (
            "a.csv",
            "t;l\na;x\n",
            "If semicolons separate them here, they are read if the first line names a column of data.columns",
        ),
        ("a.tsv", "text;label\na;x\n", 'If semicolons separate them here, set data.format = "csv"'),
    ],
)
def test_columns_apart_by_another_character_are_told_before_quotes(
    name: str, text: str, advice: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=re.escape(advice)):
        data_of(tmp_path, "sentence", name)
