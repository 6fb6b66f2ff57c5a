"""What came in: the card of a text, the same sections on that of its pairs, and the ledger as a table."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pipeline.text_card import stage_of
from schemas.manifest import read_manifest
from schemas.terminal import megabytes
from tests.pipeline.test_card import Tags

TEXT = "the cat sat on a mat and dogs ran home with friends while rain fell over green hills that evening"
WORDS = TEXT.split()

CORPORA = """
[[corpus]]
name = "books"
input = "{folder}/books.txt"
license = "CC BY-SA 4.0"
url = "https://books.example.org"
date = 2024-05-01

[[corpus]]
name = "<i>news"
input = "{folder}/news.jsonl"
share = 0.5
"""

COMING_IN = ["What came in", "What was left out", "Languages", "Text lengths"]


def prose(number: int, words: int) -> str:
    """Sentences of ten words that are drawn from the number of a document."""
    draw = random.Random(number)
    sentences = (" ".join(draw.choices(WORDS, k=10)) for _ in range(words // 10))
    return " ".join(f"{sentence.capitalize()}." for sentence in sentences)


@pytest.fixture(scope="module")
def made(command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of two corpora, of which much is left out, its held-out documents and its pairs."""
    folder = tmp_path_factory.mktemp("made")
    books = [prose(number, 100 if number % 4 else 20) for number in range(120)]
    (folder / "books.txt").write_text("\n\n".join([*books, *books[:9]]))
    news = [json.dumps({"text": prose(1000 + number, 120)}) if number % 5 else "" for number in range(100)]
    (folder / "news.jsonl").write_text("\n".join([*news, json.dumps({"text": ""})]))
    (folder / "corpora.toml").write_text(CORPORA.format(folder=folder))

    flags = ("--dedup", "exact", "--filters", "gopher", "--holdout", 0.2, "--num_shards", 2)
    done = command("shard", "--inputs", folder / "corpora.toml", "--output", folder / "text", *flags)
    assert done.returncode == 0, done.stderr
    vocab = ("--output", folder / "vocab", "--model", "wordpiece", "--size", 100)
    assert command("vocab", "--text", folder / "text", *vocab).returncode == 0
    pairs = ("--vocab", folder / "vocab", "--objective", "nsp", "--max_length", 32, "--output", folder / "pairs")
    assert command("pairs", "--text", folder / "text", *pairs).returncode == 0
    return folder


def test_the_card_says_what_came_in_and_what_each_stage_left_out(made: Path) -> None:
    page = (made / "text/card.html").read_text()
    tags = Tags(page)
    assert tags.open == [] and tags.headings == [*COMING_IN, "Made by"]
    assert not tags.seen & {"script", "link", "img", "iframe", "object", "base", "i>news"}
    assert str(made) not in page and not re.search(r"\bsrc=|\bhref=|url\(|@import", page)

    manifest = read_manifest(str(made / "text"), "text")
    documents, sources = manifest.totals["documents"], manifest.statistics["documents_by_source"]
    left_out = sum(entry.count for entry in manifest.ledger)
    stored = sum(entry.bytes or 0 for entry in manifest.inputs)
    assert f"Text of {documents} documents" in tags.text
    for figure in ("files2", f"documents{documents}", f"left out{left_out}", f"as stored{megabytes(stored)}"):
        assert figure in tags.text, figure
    said = f"booksCC BY-SA 4.0, https://books.example.org, 2024-05-01{sources['books']} ("
    assert said in tags.text and "<i>newslicense not stated, a share of 0.5 of its documents" in tags.text

    counts: Counter[str] = Counter()
    for entry in manifest.ledger:
        counts[stage_of(entry.reason)] += entry.count
        assert re.search(rf"{re.escape(f'{entry.reason}, {entry.source}')}{entry.count} [\d.]+%", tags.text), entry
    headings = ("Reading", "Filters (--filters)", "Cleaning", "Shares of corpora", "Copies (--dedup)")
    stages = ("read", "filter", "clean", "share", "dedup")
    assert set(counts) == {*stages, "holdout"}
    found = [tags.text.index(f"{heading}: {counts[stage]}") for heading, stage in zip(headings, stages, strict=True)]
    assert found == sorted(found)


def test_the_card_of_pairs_has_the_same_sections_wherever_it_is(made: Path, command, tmp_path: Path) -> None:
    """Although the text is gone, and neither page names the place of the other."""
    pairs = Path(shutil.copytree(made / "pairs", tmp_path / "pairs"))
    tags = Tags((pairs / "card.html").read_text())
    assert tags.headings[:4] == COMING_IN and "Left out of pairs" in tags.headings

    def sections(folder: Path) -> str:
        page = (folder / "card.html").read_text()
        return re.sub(r"\s+", " ", page[page.index("<h2>What came in") :].partition("<h2>Lengths")[0])

    of_text, _, _ = sections(made / "text").partition("<h2>Made by")
    assert sections(pairs).removesuffix("<section> <div>") == of_text.removesuffix("<section> <div>")

    shown = command("inspect", pairs, "--rows", 1).stdout
    left_out = re.search(r"^text +\d+ documents of 2 files; left out: read \d+, filter \d+, clean 1, ", shown, re.M)
    assert left_out and "CC BY-SA 4.0  https://books.example.org  2024-05-01" in shown


def rows_of(folder: Path) -> list[tuple[str, str, int]]:
    table = pq.read_table(folder / "ledger.parquet").select(["reason", "source", "count"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_the_ledger_is_a_table_that_others_query(made: Path) -> None:
    ledgers = {}
    for name, kind in (("text", "text"), ("text_heldout", "text"), ("pairs", "pairs")):
        ledger = read_manifest(str(made / name), kind).ledger
        ledgers[name] = sorted((entry.reason, entry.source, entry.count) for entry in ledger)
    assert rows_of(made / "text") == ledgers["text"]
    assert rows_of(made / "text_heldout") == ledgers["text_heldout"]
    assert rows_of(made / "pairs") == sorted(ledgers["text"] + ledgers["pairs"])

    table = ds.dataset(made / "pairs/ledger.parquet").to_table(filter=ds.field("stage") != "pairs")
    assert table == pq.read_table(made / "text/ledger.parquet")
    assert {row["corpus"] for row in table.to_pylist()} == {"books", "<i>news"}
    assert table.schema.names == ["stage", "reason", "source", "corpus", "language", "count"]


def test_many_and_long_sources_leave_the_card_small(command, tmp_path: Path) -> None:
    """Which is bounded by the page, not by what records call themselves; the table has all."""
    names = [f"{number} {'x' * 3000}" for number in range(60)]
    records = [{"text": text, "source": name} for name in names for text in (f"A cat met {name[:3]}.", "")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    done = command("shard", "--input", tmp_path / "a.jsonl", "--output", tmp_path / "text", "--max_bad_ratio", 1)
    assert done.returncode == 0, done.stderr

    page = (tmp_path / "text/card.html").read_text()
    assert len(page) < 60_000
    text = Tags(page).text
    assert "36 others36 60.0%" in text and "others36 30.0%" in text and "Cleaning: 60" in text
    assert rows_of(tmp_path / "text") == sorted(("empty document", name, 1) for name in names)


def test_a_text_of_which_all_is_kept(command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A cat sat. It slept.\n\nA dog ran.\n")
    assert command("shard", "--input", tmp_path / "a.txt", "--output", tmp_path / "text").returncode == 0
    text = Tags((tmp_path / "text/card.html").read_text()).text
    assert "Nothing." in text and "text2 100.0%" in text and "All were read as en" in text
    assert rows_of(tmp_path / "text") == []


@pytest.mark.parametrize(
    ("reason", "stage"),
    [
        ("blank line", "read"),
        ("no text under 'c4 filter: x'", "read"),
        ("file that looks like a picture", "read"),
        ("language uncertain", "language"),
        ("language zh", "language"),
        ("13 words as in dev set.jsonl", "decontaminate"),
        ("c4 filter: no line left", "filter"),
        ("fineweb filter: max_short_lines", "filter"),
        ("near-duplicate document", "dedup"),
        ("duplicate document", "dedup"),
        ("not held out", "holdout"),
    ],
)
def test_every_reason_has_its_stage(reason: str, stage: str) -> None:
    assert stage_of(reason) == stage


def test_pairs_refuse_a_text_that_does_not_say_what_is_in_it(made: Path, command, tmp_path: Path) -> None:
    text = Path(shutil.copytree(made / "text", tmp_path / "text"))
    fields = json.loads((text / "manifest.json").read_text())
    fields["statistics"]["cleaning"] = ["spaces"]
    (text / "manifest.json").write_text(json.dumps(fields))
    flags = ("--vocab", made / "vocab", "--objective", "nsp", "--output", tmp_path / "pairs")
    done = command("pairs", "--text", text, *flags)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert "does not say what is in the text" in done.stderr and not (tmp_path / "pairs").exists()


def test_pairs_whose_facts_are_damaged_are_refused_in_one_line(made: Path, command, tmp_path: Path) -> None:
    pairs = Path(shutil.copytree(made / "pairs", tmp_path / "pairs"))
    fields = json.loads((pairs / "manifest.json").read_text())
    fields["statistics"]["text"]["files"] = -1
    (pairs / "manifest.json").write_text(json.dumps(fields))
    for job in ("verify", "inspect"):
        done = command(job, pairs)
        assert done.returncode == 3 and "statistics.text.files" in done.stderr, done.stderr
