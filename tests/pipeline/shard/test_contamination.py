"""Runs of words that documents share with evaluation sets: equal to a plain loop, in every form that sets come in."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.shard.contamination import EvaluationSets, read_evaluation_sets, run_hashes, texts_of
from schemas.errors import DataError
from tests.pipeline.readers.office_files import docx, word, zipped

QUESTION = "Which of the four rivers that rise at cafés in this part of the country is the longest of all?"
SHORT = "Which river is the longest?"


def plain_runs(text: str, words: int) -> set[tuple[str, ...]]:
    found = re.findall(
        r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff]+", text.lower()
    )
    return {tuple(found[place : place + words]) for place in range(len(found) - words + 1)}


@given(st.text("ab .,山い", max_size=40), st.text("ab .,山い", max_size=40), st.integers(1, 4))
def test_texts_share_hashes_as_they_share_runs_of_words(first: str, second: str, words: int) -> None:
    shared = np.intersect1d(run_hashes(first, words), run_hashes(second, words))
    assert len(shared) == len(plain_runs(first, words) & plain_runs(second, words))


def write_sets(folder: Path) -> list[str]:
    rows = [{"question": QUESTION, "choices": [SHORT], "answer": {"text": f"It is so: {QUESTION}"}}]
    (folder / "dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "dev.json").write_text(json.dumps({"data": rows}, indent=1))
    (folder / "dev.tsv").write_text(f"id\tquestion\n7\t{QUESTION}\n")
    (folder / "dev.csv").write_text(f'id,question\n7,"{QUESTION}, {SHORT}"\n')
    (folder / "dev2.csv").write_text(f'id;question\n7;"{QUESTION}, {SHORT}"\n')
    (folder / "dev.tab").write_text(f"id\tquestion\n7\t{QUESTION}\n")
    (folder / "dev3.csv").write_text(f"id;question\n7;{QUESTION.replace('that', 'that,')}\n")
    (folder / "dev.txt").write_text(f"{SHORT}\n{QUESTION}\n")
    (folder / "dev.ndjson").write_text(json.dumps({"question": QUESTION, "score": float("nan")}))
    (folder / "decomposed.txt").write_text(unicodedata.normalize("NFD", QUESTION))
    table = pa.Table.from_pylist(rows)
    for name in ("dev.parquet", "dev.pq"):
        pq.write_table(table, folder / name)
    feather.write_feather(table, folder / "dev.feather")
    with pa.ipc.new_stream(folder / "dev.arrow", table.schema) as stream:
        stream.write(table)
    return sorted(map(str, folder.iterdir()))


def test_a_set_in_any_form_finds_its_texts(tmp_path: Path) -> None:
    for path in write_sets(tmp_path):
        sets = read_evaluation_sets([path])
        inside = f"Before it. {QUESTION.upper().replace(' ', '  ')} After it."
        assert sets.file_with(inside) == Path(path).name
        assert sets.file_with(QUESTION.replace("part", "corner")) is None
        assert sets.file_with(SHORT) is None
        assert sets.file_with("") is None


def test_the_first_set_is_named_and_sets_survive_storage(tmp_path: Path) -> None:
    paths = write_sets(tmp_path)
    sets = EvaluationSets.from_bytes(read_evaluation_sets(paths).to_bytes())
    assert sets.file_with(QUESTION) == Path(paths[0]).name
    assert sets.skipped >= 2
    assert sets.to_bytes() == read_evaluation_sets(paths).to_bytes()


def test_a_long_cell_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"id,text\n1,{'long ' * 40_000}\n")
    assert max(map(len, texts_of(str(path)))) == 200_000


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b"{broken"),
        ("a.jsonl", b"[" * 1000 + b"]" * 1000),
        ("a.parquet", b"no Parquet"),
        ("a.txt.gz", b"no gzip"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} (cannot be read|is not gzip)(?!.*\.\.)"):
        list(texts_of(str(path)))


def test_json_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (path := tmp_path / "dev.jsonl").write_text(json.dumps({"question": QUESTION}), encoding="utf-8-sig")
    assert list(texts_of(str(path))) == [QUESTION]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dev.docx", docx(word(QUESTION)), "looks like an office document"),
        ("dev.zip", zipped({"dev.txt": QUESTION}), "looks like an archive"),
        ("dev.csv", f"text\n{QUESTION}\n".encode("utf-16"), "is not UTF-8"),
        ("dev.txt", f"{QUESTION} Und das wäre größer.\n".encode("cp1252"), "is not UTF-8"),
        ("dev.bin", bytes(range(32)) * 99, "looks like binary data"),
    ],
)
def test_a_file_that_would_match_nothing_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"--decontaminate .*{name} {message}"):
        read_evaluation_sets([str(tmp_path / name)])


@pytest.mark.parametrize(
    "flags", ["--decontaminate no.jsonl --input {}", "--filters no.toml --input {}", "--inputs no.toml"]
)
def test_a_file_of_a_flag_that_does_not_exist_is_a_mistake_of_usage(command, tmp_path: Path, flags: str) -> None:
    (tmp_path / "x.txt").write_text(QUESTION)
    done = command("shard", *flags.format(tmp_path / "x.txt").split(), "--output", tmp_path / "text")
    assert done.returncode == 2
    assert re.search(r"clozeline: --\w+ no\.\w+ does not exist\. Check the path\.\n", done.stderr)


def test_a_set_without_a_long_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text(SHORT)
    with pytest.raises(DataError, match=r"short\.txt has no text of 13 words or more"):
        read_evaluation_sets([str(path)])
    assert read_evaluation_sets([str(path)], words=4).file_with(f"So: {SHORT}") == "short.txt"
