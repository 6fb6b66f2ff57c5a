"""The warning of `shard` that blank lines may have cut articles into paragraphs."""

from __future__ import annotations

import json
import random
import textwrap
from pathlib import Path

import pytest

from tests.conftest import sentence

ADVICE = "give --text_layout file"
FILES, PARAGRAPHS = 40, 12


@pytest.fixture(scope="module")
def articles(tmp_path_factory) -> Path:
    """A folder of articles: paragraphs of wrapped lines, and a short one that all articles have in many places."""
    rng = random.Random(0)
    folder = tmp_path_factory.mktemp("articles")
    for number in range(FILES):
        long = [textwrap.fill(" ".join(sentence(rng) for _ in range(6)), 60) for _ in range(PARAGRAPHS // 2)]
        (folder / f"{number}.txt").write_text("\n\n".join(part for one in long for part in (one, "Next.")) + "\n")
    return folder


def warning(command, *arguments: object) -> str:
    """Return the line of the warning; empty without."""
    done = command("shard", *arguments)
    assert done.returncode == 0, done.stderr
    return next((line for line in done.stderr.splitlines() if ADVICE in line), "")


@pytest.mark.parametrize("flags", [(), ("--dedup", "exact", "--holdout", 0.1)])
def test_articles_that_blank_lines_cut_are_noticed(command, articles: Path, tmp_path: Path, flags: tuple) -> None:
    line = warning(command, "--input", articles, "--output", tmp_path / "out", *flags)
    assert f"the plain text of 40 files is {FILES * PARAGRAPHS} documents, 12 a file, of " in line
    assert warning(command, "--input", articles, "--output", tmp_path / "out", *flags) == line  # of what is finished


def test_long_paragraphs_of_many_files_are_noticed(command, tmp_path: Path) -> None:
    rng = random.Random(0)
    folder = tmp_path / "speeches"
    folder.mkdir()
    for number in range(FILES):
        long = [" ".join(sentence(rng) for _ in range(30)) for _ in range(PARAGRAPHS)]
        (folder / f"{number}.txt").write_text("\n\n".join(long) + "\n")
    line = warning(command, "--input", folder, "--output", tmp_path / "out")
    assert f"40 files is {FILES * PARAGRAPHS} documents" in line and " of 1,3" in line


def test_files_of_other_formats_do_not_hide_them(command, articles: Path, tmp_path: Path) -> None:
    speeches = tmp_path / "speeches.jsonl"
    speeches.write_text("".join(json.dumps({"text": f"Speech {number}. " * 500}) + "\n" for number in range(400)))
    line = warning(command, "--input", articles / "*.txt", speeches, "--output", tmp_path / "out")
    assert f"the plain text of 40 files is {FILES * PARAGRAPHS} documents" in line


def test_each_corpus_has_its_own_layout(command, articles: Path, tmp_path: Path) -> None:
    corpora = tmp_path / "corpora.toml"
    corpora.write_text(f'[[corpus]]\nname = "a"\ninput = "{articles}/*.txt"\ntext_layout = "file"\n')
    assert not warning(command, "--inputs", corpora, "--output", tmp_path / "out")


def test_no_warning_where_files_hold_many_documents(command, tmp_path: Path) -> None:
    rng = random.Random(0)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("\n".join(sentence(rng) for _ in range(rng.randint(1, 9))) for _ in range(400)))
    assert not warning(command, "--input", text, "--output", tmp_path / "out")


def test_no_warning_where_each_file_is_a_document(command, articles: Path, tmp_path: Path) -> None:
    assert not warning(command, "--input", articles, "--output", tmp_path / "out", "--text_layout", "file")
