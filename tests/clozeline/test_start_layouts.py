"""What `clozeline start` takes for a corpus and its documents, and how many it holds out, of real kinds of files."""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
import tomllib
from pathlib import Path

import pytest

from clozeline.cli import main
from pipeline import look
from pipeline.inspection import inspect_all
from pipeline.shard import text_layout

PARAGRAPH = "We hold that this is so, and that all of us can see it. " * 20
MAY_BE_PARAGRAPHS = "If these are paragraphs, text_layout = file makes each file a document."


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def planned(given: str) -> dict:
    assert main(["start", given, "--output", f"out/{given}", "--plan_only"]) == 0
    return tomllib.loads(Path(f"out/{given}/clozeline.toml").read_text())["shard"]


def write_files(number: int, text: str) -> None:
    Path("texts").mkdir()
    for i in range(number):
        Path(f"texts/{i}.txt").write_text(f"{i}\n{text}")


def test_a_long_line_is_a_document_if_no_line_is_blank() -> None:
    Path("zh.txt").write_text("".join(f"{number}年，{'我们在城里看见了一条河。' * 12}\n" for number in range(100)))
    Path("poem.txt").write_text("A line of a poem.\n" * 500)
    plan = planned("zh.txt")
    assert plan["text_layout"] == "line" and plan["holdout"] == 0.06
    assert planned("poem.txt")["text_layout"] == "blank_line"


def test_many_lines_of_any_length_are_documents_if_no_line_is_blank() -> None:
    Path("titles").mkdir()
    for name, longest in ("titles", 12), ("comments", 30):
        lines = [
            " ".join(f"word{number * place % 97}" for place in range(4, 4 + number % longest))
            for number in range(1, 9000)
        ]
        Path(f"titles/{name}.txt").write_text("\n".join(line or "No" for line in lines))
    assert planned("titles")["text_layout"] == "line"
    shutil.copytree("titles", "blocks")
    with open("blocks/comments.txt", "a") as comments:
        comments.write("\n\nAnd one of two lines.\nThis is the second.\n")
    assert planned("blocks")["text_layout"] == "blank_line"


def test_a_manifest_of_another_program_is_no_result_of_ours() -> None:
    write_files(40, f"{PARAGRAPH}\n\n{PARAGRAPH}\n")
    Path("texts/manifest.json").write_text('{"text": "The river is long.", "files": 40}')
    assert planned("texts")["input"] == ["texts"]
    assert "of text in 41 documents" in "\n".join(inspect_all(["texts"], 1))


def test_that_all_splits_of_a_dataset_are_read_is_said() -> None:
    for split in "train", "test":
        Path("dataset", split).mkdir(parents=True)
        Path("dataset", split, "data.jsonl").write_text(json.dumps({"text": PARAGRAPH}) + "\n")
    Path("dataset/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert "All splits of the dataset in dataset are read. To read one," in "\n".join(inspect_all(["dataset"], 1))


def test_names_that_a_plan_cannot_hold_and_others(capsys: pytest.CaptureFixture[str]) -> None:
    odd = "a\nb\x7f"
    Path(odd).mkdir()
    Path(odd, "a.txt").write_text(f"{PARAGRAPH}\n\n" * 900)
    assert planned(odd)["input"] == [odd]
    Path(os.fsdecode(b"caf\xe9")).mkdir()
    assert main(["start", os.fsdecode(b"caf\xe9"), "--plan_only"]) == 2
    assert "is not UTF-8. Rename it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "flags", "code", "told"),
    [
        ("[shard]\n", "[shard]\nfilters = ['c4', 'gopher']\n", (), 0, "clozeline shard .*--filters c4,gopher"),
        ("[pairs]\n", "[pairs]\nlanguages = ['en', 'de']\n", (), 0, "--languages en,de"),
        ('"full_sentences"', '["full_sentences"]', (), 0, "--objective full_sentences"),
        ("max_length = 128", 'max_length = "512"', (), 2, "max_length 512 is above the 128 tokens"),
        (
            '"run.max_hours" = ',
            '"run.max_steps" = 9000 # ',
            ("--hours", "3"),
            0,
            "--hours 3 changes nothing: out/texts/",
        ),
    ],
)
def test_a_plan_may_have_lists_quoted_numbers_and_no_hours(
    old: str, new: str, flags: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(40, f"{PARAGRAPH}\n\n" * 9)
    planned("texts")
    place = Path("out/texts/clozeline.toml")
    assert old in place.read_text()
    place.write_text(place.read_text().replace(old, new))
    capsys.readouterr()
    assert main(["start", "texts", "--output", "out/texts", *flags, "--plan_only"]) == code
    shown = capsys.readouterr()
    assert re.search(told, shown.out + shown.err)


@pytest.mark.parametrize(
    ("files", "text"), [(40, f"{PARAGRAPH}\n{PARAGRAPH}\n\n{PARAGRAPH}\n{PARAGRAPH}\n"), (10, f"{PARAGRAPH}\n\n" * 8)]
)
def test_many_articles_are_a_document_each(files: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(files, text)
    assert planned("texts")["text_layout"] == "file"
    shown = capsys.readouterr().out
    assert f"in {files} documents" in shown and MAY_BE_PARAGRAPHS not in shown
    assert ("If each block is a document, text_layout = blank_line." in shown) == (files == 40)


def test_lines_of_a_sentence_each_between_blank_lines_are_documents() -> None:
    """As the format of BERT's first programs has them. Dialog that is wrapped is none."""
    block = (
        "Sir.\nYou are well overtaken, and I wish you a good morning;\nI have come a long way to see you this day.\n"
    )
    write_files(12, f"{block}\n{block}{block}\n" * 20)
    plan = planned("texts")
    assert plan["text_layout"] == "blank_line" and plan["sentence_splitter"] == "newline"
    assert "--sentence_splitter newline" in "\n".join(inspect_all(["texts"], 1))

    shutil.rmtree("texts")
    prose = textwrap.fill("You are well overtaken. I wish you a good morning. " * 6, 60)
    write_files(12, f"{prose}\n\n" * 20)
    shutil.rmtree("out")
    plan = planned("texts")
    assert plan["text_layout"] == "file" and "sentence_splitter" not in plan


def test_few_files_of_pieces_that_may_be_paragraphs_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    write_files(4, f"{PARAGRAPH}\n\n" * 8)
    assert planned("texts")["text_layout"] == "blank_line"
    shown = capsys.readouterr().out
    assert "in 32 documents" in shown and MAY_BE_PARAGRAPHS in shown


def test_a_file_of_another_layout_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mixed").mkdir()
    Path("mixed/sentences.txt").write_text(f"One.\nTwo.\nThree.\n{PARAGRAPH}\n\n" * 200)
    Path("mixed/lines.txt").write_text(f"{PARAGRAPH}\n" * 200)
    assert planned("mixed")["text_layout"] == "blank_line"
    shown = capsys.readouterr().out
    assert "mixed/lines.txt: many or long lines and none blank" in shown and MAY_BE_PARAGRAPHS not in shown


@pytest.mark.parametrize(("documents_there", "share"), [(20, False), (40, 0.15), (120, 0.05)])
def test_a_small_corpus_holds_out_enough_or_nothing(documents: list[str], documents_there: int, share: object) -> None:
    Path("lines.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents[:documents_there]))
    assert planned("lines.jsonl")["holdout"] == share


@pytest.mark.parametrize(
    ("given", "name"), [("my texts/", "my texts"), (".", "here"), ("my texts/*.jsonl", "my texts"), ("?.txt", "here")]
)
def test_the_corpus_is_called_as_its_folder(
    documents: list[str], given: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / "my texts").mkdir(parents=True)
    monkeypatch.chdir(here)
    for path in ("my texts/a.jsonl", "a.txt"):
        Path(path).write_text("".join(json.dumps({"text": text}) + "\n" for text in documents[:40]))
    assert main(["start", given, "--output", "../out", "--plan_only"]) == 0
    assert tomllib.loads(Path("../out/clozeline.toml").read_text())["shard"]["corpus_name"] == name


@pytest.mark.parametrize(
    ("folder", "read", "is_warned"),
    [("other", "texts", True), ("texts", "other", True), ("texts", "texts/1*.txt", False), ("texts/1.txt", ".", False)],
)
def test_a_plan_for_one_folder_that_reads_another_is_named(
    folder: str, read: str, is_warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(12, f"{PARAGRAPH}\n\n" * 8)
    shutil.copytree("texts", "other")
    planned("texts")
    plan = Path("out/texts/clozeline.toml")
    text = plan.read_text().replace('folder = "texts"', f'folder = "{folder}"')
    plan.write_text(text.replace('input = "texts"', f'input = "{read}"').replace('["texts"]', f'["{read}"]'))
    capsys.readouterr()
    assert main(["start", folder, "--output", "out/texts", "--plan_only"]) == 0
    assert ("Warning: folder is" in capsys.readouterr().out) == is_warned


def test_each_line_of_a_large_file_without_a_blank_one_is_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long documents of a large file stay documents."""
    monkeypatch.setattr(text_layout, "MAX_BOOK_BYTES", 9000)
    Path("lines.txt").write_text("The river is long.\n" * 9000)
    Path("books.txt").write_text(("The river is long.\n" * 9000 + "\n") * 9)
    assert planned("books.txt")["text_layout"] == "blank_line"
    assert planned("lines.txt")["text_layout"] == "line"
    assert "of text in 9,000 documents" in "\n".join(inspect_all(["lines.txt"], 1))


def test_files_that_are_not_opened_are_taken_for_what_others_with_such_names_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(look, "MAX_OPENED", 20)
    Path("texts").mkdir()
    for number in range(99):
        Path(f"texts/{number}.xml").write_text(f"<?xml version='1.0'?>\n<a>{PARAGRAPH}</a>\n")
    for number in range(60):
        Path(f"texts/{number}.json").write_text(json.dumps([{"text": PARAGRAPH}], indent=1))
    said = "\n".join(inspect_all(["texts"], 1))
    assert re.search(r"left out +99 x .* XML: ", said) and re.search(r" of text in [56]\d documents", said), said


COMMENTS = "".join(f"{'so long ' * (number % 19)}it was great\n" for number in range(9000))


@pytest.mark.parametrize("text", ["The river is long and wide.\n" * 9000, COMMENTS])
def test_lines_that_are_not_wrapped_may_be_documents(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("sentences.txt").write_text(text)
    assert planned("sentences.txt")["text_layout"] == "line"
    Path("books").mkdir()
    for number in range(10):
        Path(f"books/{number}.txt").write_text(f"Book {number}.\n{text}")
    assert planned("books")["text_layout"] == "blank_line"
    assert "If each line is one, text_layout = line makes it one." in " ".join(capsys.readouterr().out.split())


def test_a_wrapped_text_is_not_said_to_be_documents_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Path("book.txt").write_text(textwrap.fill("it was a long and rather dull way home, " * 5000, 70))
    assert planned("book.txt")["text_layout"] == "blank_line"
    assert "If each line is one" not in capsys.readouterr().out


def test_a_wrapped_dialog_is_not_taken_for_documents_in_lines() -> None:
    said = [f"I saw it {'again and ' * (number % 13)}again near the river." for number in range(6000)]
    Path("dialog.txt").write_text("\n".join(textwrap.fill(line, 60) for line in said))
    assert planned("dialog.txt")["text_layout"] == "blank_line"


def test_what_a_pattern_matches_and_is_no_text_is_left_out_of_a_plan(tmp_path: Path) -> None:
    Path("mixed").mkdir()
    Path("mixed/a.txt").write_text(f"{PARAGRAPH}\n\n" * 900)
    Path("mixed/b.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    assert "exclude" not in planned("mixed")  # a folder leaves it out itself
    assert main(["start", "mixed/*", "--output", "out/pattern", "--plan_only"]) == 0
    assert tomllib.loads(Path("out/pattern/clozeline.toml").read_text())["shard"]["exclude"] == ["mixed/b.png"]


def test_few_of_many_files_are_opened_and_none_is_left_out_by_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "MAX_OPENED", 20)
    Path("texts").mkdir()
    for number in range(300):
        table = "".join(f"{row}\t{PARAGRAPH}\n" for row in ("id", *range(9)))
        Path(f"texts/{number:03}.txt").write_text(table.replace(PARAGRAPH, "label", 1) if number % 3 else PARAGRAPH)
    assert "exclude" not in planned("texts")


def test_an_array_without_texts_is_not_read_to_its_end() -> None:
    Path("numbers").mkdir()
    Path("numbers/a.json").write_text("[" + ", ".join(f'{{"n": {number}}}' for number in range(9000)) + "]")
    Path("numbers/b.txt").write_text(f"{PARAGRAPH}\n\n" * 90)
    assert planned("numbers")["input"] == ["numbers"]
