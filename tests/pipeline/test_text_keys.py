"""The keys that `inspect` and `start` choose for the tables of a folder: each file's longest text, and no labels."""

from __future__ import annotations

import csv
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.look import look_at, look_lines
from schemas.errors import UsageError

SENTENCE = "It rained the whole day, and the river rose above the bridge."


def write_csv(path: Path, header: str, rows: list[str]) -> None:
    path.write_text("".join(f"{row}\n" for row in (header, *rows)))


def test_the_longest_text_comes_first(tmp_path: Path) -> None:
    """In most files the only text is what is a title in another."""
    for number in range(3):
        write_csv(tmp_path / f"titles{number}.csv", "title", ["A short title"] * 50)
    write_csv(tmp_path / "train.csv", "title,tweet", [f'A title,"{SENTENCE}"'] * 50)
    assert look_at(str(tmp_path)).text_key == "tweet|title"


def test_what_comes_again_in_each_row_counts_once(tmp_path: Path) -> None:
    rows = [
        f'"{SENTENCE} {number}","{"This text is licensed under the terms of its authors. " * 5}"'
        for number in range(50)
    ]
    write_csv(tmp_path / "a.csv", "review,rights", rows)
    lines = [{"a": {"said": f"{SENTENCE} {number}"}, "b": {"bio": SENTENCE * 3}} for number in range(50)]
    (tmp_path / "b.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert look_at(str(tmp_path)).text_key == "a.said|review"


def test_a_key_of_few_files_whose_records_have_that_of_the_others_is_not_added(tmp_path: Path) -> None:
    for number in range(5):
        rows = [f'author{place},"{SENTENCE if number else "Good."} {place}"' for place in range(50)]
        write_csv(tmp_path / f"{number}.csv", "author,said", rows)
    assert look_at(str(tmp_path)).text_key == "said"


def test_other_keys_with_texts_are_told(tmp_path: Path) -> None:
    question = "What do you think about the music of this film, and about its pictures?"
    rows = [f'{number},"{question} {number}","{SENTENCE} {number}",9,"short"' for number in range(50)]
    write_csv(tmp_path / "a.csv", "id,question,review,stars,mood", rows)
    look = look_at(str(tmp_path))
    assert look.text_key == "review" and look.unread_keys == {"question": 74}
    told = "Text is read under review. Others, by what a record has on average: question (74 characters)."
    assert told in list(look_lines("a", look))


@pytest.mark.parametrize(
    ("columns", "row", "key"),
    [
        ("passage,verse", f'Genesis 46:47,"{SENTENCE}"', "verse"),
        ("review,plot", f'"One of his best films, and long.","{SENTENCE * 5}"', "plot"),
        ("tweet,sentence", f'It rained.,"{SENTENCE}"', "sentence"),
        ("question,review", f'"{SENTENCE} {SENTENCE}","{SENTENCE}"', "review"),
    ],
)
def test_a_name_that_texts_often_have_needs_a_text(columns: str, row: str, key: str, tmp_path: Path) -> None:
    rows = [
        row.replace("rained", f"rained {number} days").replace("46", str(number)).replace("films", f"films of {number}")
        for number in range(50)
    ]
    write_csv(tmp_path / "a.csv", columns, rows)
    assert look_at(str(tmp_path)).text_key == key


def test_labels_are_no_texts(tmp_path: Path) -> None:
    write_csv(tmp_path / "submission.csv", "id,label", ["1,happy", "2,sad"] * 50)
    write_csv(tmp_path / "train.csv", "label,tweet", [f'happy,"{SENTENCE}"'] * 50)
    look = look_at(str(tmp_path))
    assert look.text_key == "tweet" and look.unreadable == [str(tmp_path / "submission.csv")]


@pytest.mark.parametrize(("files", "key"), [(3, "text|body[].words"), (12, "text|body.words")])
def test_lists_in_few_files_of_one_object_are_documents(files: int, key: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "{SENTENCE}"}}\n' * 9)
    for number in range(files):
        (tmp_path / f"{number}.json").write_text(json.dumps({"body": [{"words": SENTENCE}] * 9}, indent=1))
    assert look_at(str(tmp_path)).text_key == key


@pytest.mark.parametrize(
    ("files", "key", "unread"), [(14, "body,comments.body", {"title"}), (5, "comments[].body", {"title", "body"})]
)
def test_comments_are_read_beside_the_texts_of_many_issues(
    files: int, key: str, unread: set[str], tmp_path: Path
) -> None:
    for number in range(files):
        issue: dict[str, Any] = {"title": f"{SENTENCE} {number}", "body": f"{SENTENCE} It was {number}."}
        issue |= {"comments": [{"body": f"{SENTENCE} {place}"} for place in range(4)]}
        issue |= {"body": None} if number == 0 else {"body": None, "comments": []} if number == 1 else {}
        (tmp_path / f"{number}.json").write_text(json.dumps(issue))
    look = look_at(str(tmp_path))
    assert look.text_key == key and set(look.unread_keys) == unread


def test_a_key_that_is_read_in_other_files_alone_is_told(tmp_path: Path) -> None:
    write_csv(
        tmp_path / "a.csv", "title,tweet", [f'"{SENTENCE} {number}","{SENTENCE * 2} {number}"' for number in range(9)]
    )
    write_csv(tmp_path / "b.csv", "title", [f'"{SENTENCE} {number}"' for number in range(9)])
    look = look_at(str(tmp_path))
    assert look.text_key == "tweet|title" and look.unread_keys == {"title": 63}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_list_of_sentences_is_the_text_if_there_is_no_other(suffix: str, tmp_path: Path) -> None:
    rows = [
        {"id": f"a{number}", "tokens": ["It", "rained"], "said": [SENTENCE, f"{SENTENCE} {number}"]}
        for number in range(9)
    ]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    else:
        (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert look_at(str(tmp_path)).text_key == "said"


HTML = 'hold HTML, which is read as it is: docs/input.md, "HTML in texts", has lines that remove it.'
MAIL = "begin with headers, which are read, too: write its messages as JSON lines first"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"<p>{SENTENCE}</p>", f"33% of the sampled texts {HTML}"),
        (f"{SENTENCE} a &lt; b", f"33% of the sampled texts {HTML}"),
        (f"Message-ID: <1@a>\nFrom: a@a.org\nX-To: b\n\n{SENTENCE}", f"33% of the sampled texts {MAIL}"),
        (f"{SENTENCE} 1 < 2, a <b, From: here", ""),
        (" ", "3 of 9 sampled records are left out: text is null or empty in them."),
        (None, "3 of 9 sampled records are left out: text is null or empty in them."),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_texts_that_are_no_prose_are_told(command, suffix: str, text: str | None, told: str, tmp_path: Path) -> None:
    rows = [{"n": str(number), "text": text if number % 3 == 0 else f"{SENTENCE} {number}"} for number in range(9)]
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([rows[0], *(row.values() for row in rows)])
    else:
        path.write_text(json.dumps(rows) if suffix == "json" else "".join(f"{json.dumps(row)}\n" for row in rows))
    look = look_at(str(tmp_path))
    assert not look.faults and "\n".join(look.traits).startswith(told) and (told or not look.traits)
    if not (text or "").strip():
        done = command("shard", "--input", path, "--output", tmp_path / "out")
        assert "6 documents" in done.stdout and f"left out: 3 x empty document ({suffix})" in done.stdout


def test_records_that_lack_the_key_get_advice(command, tmp_path: Path) -> None:
    rows = [{"title": SENTENCE} | ({"body": f"{SENTENCE * 2} {number}"} if number % 9 else {}) for number in range(90)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    told = command("inspect", tmp_path).stdout
    assert "It has strings under title, which --text_key 'body|title' reads." in told
    assert "or give the flags named above" in told


def test_texts_in_settings_are_not_the_text_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{SENTENCE}\n\n" * 900)
    (tmp_path / "settings.json").write_text(json.dumps({"rules": [{"message": SENTENCE}] * 5}, indent=1))
    (tmp_path / "b.json").write_text(json.dumps({"body": SENTENCE}, indent=1))
    assert look_at(str(tmp_path)).text_key == "body"


def test_settings_in_an_archive_are_not_its_text(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        for number in range(30):
            zipped.writestr(f"{number}.txt", f"{SENTENCE}\n\n" * 200)
        zipped.writestr("a.json", json.dumps({"help": [{"message": SENTENCE}] * 5}, indent=1))
    assert look_at(str(tmp_path)).text_key == "text"


def test_a_first_row_that_is_a_long_text_is_shown(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.tsv", f"{'It rained, and it rained, ' * 3}\tNo", [f"{SENTENCE}\tYes, {SENTENCE}"] * 9)
    first = "its first row begins with 'It rained, and it rained, It rained, and it rained, It raine'"
    with pytest.raises(
        UsageError, match=f"no text column 'text'; {first}; give --text_key a name in it, or add a first"
    ):
        look_at(str(tmp_path))


def test_a_first_row_that_is_a_sentence_is_no_header(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.tsv", "id1\tIt rained.", [f"id{number}\tIt rained {number} days." for number in range(50)])
    write_csv(tmp_path / "b.csv", "Is it true?,text", [f'"No",{SENTENCE}'] * 50)
    (tmp_path / "c.txt").write_text(f"{SENTENCE}\n" * 20)
    look = look_at(str(tmp_path))
    assert look.text_key == "text" and look.unreadable == [str(tmp_path / "a.tsv")]


@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_keys_are_found_in_archives(command, name: str, tmp_path: Path) -> None:
    lines = "".join(f"{json.dumps({'words': f'{SENTENCE} {number}'})}\n" for number in range(50))
    (tmp_path / "rows.jsonl").write_text(lines)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    if name == "a.zip":
        with zipfile.ZipFile(corpus / name, "w") as zipped:
            zipped.write(tmp_path / "rows.jsonl", "rows.jsonl")
    else:
        with tarfile.open(corpus / name, "w") as tarred:
            tarred.add(tmp_path / "rows.jsonl", "rows.jsonl")
    assert look_at(str(corpus)).text_key == "words"

    done = command("shard", "--input", corpus, "--text_key", "words", "--output", tmp_path / "out")
    assert done.returncode == 0 and "50 documents" in done.stdout and not done.stderr, done.stderr
