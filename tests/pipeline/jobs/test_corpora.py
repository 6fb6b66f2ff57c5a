"""shard --inputs: several corpora in one job, each read by its own options, equal to jobs of each alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.manifest import read_manifest
from tests.pipeline.beam_flags import THREADS
from tests.pipeline.shard.test_detection import ARTICLE
from tests.pipeline.text_rows import text_rows

CORPORA = """
[[corpus]]
name = "books"
input = "{folder}/books/*.txt"
encoding = "cp1252"
text_layout = "file"
language = "German"
license = "public domain"
url = "https://books.example.org"
date = 2024-05-01

[[corpus]]
name = "news"
input = ["{folder}/news.jsonl"]
text_key = "body"
{more}
"""


def write_corpora(folder: Path, more: str = "") -> Path:
    (folder / "books").mkdir()
    for number in range(4):
        book = f"{ARTICLE['de']} Band {number}.\n\n{ARTICLE['de']}\n"
        (folder / "books" / f"{number}.txt").write_bytes(book.encode("cp1252"))
    articles = [{"body": f"{ARTICLE['en']} Number {number}.", "source": "agency"} for number in range(400)]
    (folder / "news.jsonl").write_text("\n".join(map(json.dumps, articles)))
    (folder / "corpora.toml").write_text(CORPORA.format(folder=folder, more=more))
    return folder / "corpora.toml"


def rows_of(folder: Path) -> list[tuple]:
    return sorted((row["source"], row["document"], *row["sentences"]) for row in text_rows(folder))


def test_each_corpus_is_read_as_by_a_job_of_its_own(command, tmp_path: Path) -> None:
    listed = write_corpora(tmp_path)
    done = command("shard", "--inputs", listed, "--output", tmp_path / "both", "--num_shards", 2)
    assert done.returncode == 0, done.stderr
    assert "documents by language: en 400, de 4" in done.stdout

    books = ("--input", f"{tmp_path}/books/*.txt", "--encoding", "cp1252", "--text_layout", "file", "--language", "de")
    assert command("shard", *books, "--output", tmp_path / "books_alone").returncode == 0
    news = ("--input", tmp_path / "news.jsonl", "--text_key", "body")
    assert command("shard", *news, "--output", tmp_path / "news_alone").returncode == 0
    alone = [("books", *row[1:]) for row in rows_of(tmp_path / "books_alone")]
    alone += [("news", *row[1:]) for row in rows_of(tmp_path / "news_alone")]
    assert rows_of(tmp_path / "both") == alone

    manifest = read_manifest(str(tmp_path / "both"), "text")
    assert manifest.options["corpora"] == [
        {
            "name": "books",
            "license": "public domain",
            "url": "https://books.example.org",
            "date": "2024-05-01",
            "text_layout": "file",
            "encoding": "cp1252",
            "language": "German",
        },
        {"name": "news", "text_key": "body"},
    ]
    assert manifest.statistics["documents_by_source"] == {"books": 4, "news": 400}

    # The same command has nothing to do; another name is another job.
    again = command("shard", "--inputs", listed, "--output", tmp_path / "both", "--num_shards", 2)
    assert "already finished" in again.stderr
    listed.write_text(listed.read_text().replace('"news"', '"papers"'))
    assert command("shard", "--inputs", listed, "--output", tmp_path / "both", "--num_shards", 2).returncode == 2


def test_a_share_is_the_same_documents_whatever_the_workers(command, tmp_path: Path) -> None:
    shares = {}
    for share, workers in ((0.25, ()), (0.25, THREADS), (0.5, ())):
        folder = tmp_path / f"{share} {len(workers)}"
        folder.mkdir()
        listed = write_corpora(folder, f"share = {share}")
        assert command("shard", "--inputs", listed, "--output", folder / "text", *workers).returncode == 0
        shares[share, workers] = {row for row in rows_of(folder / "text") if row[0] == "news"}
        ledger = read_manifest(str(folder / "text"), "text").ledger
        assert [(entry.reason, entry.source) for entry in ledger] == [("beyond the share of its corpus", "news")]
        assert len(shares[share, workers]) + ledger[0].count == 400
    assert shares[0.25, ()] == shares[0.25, THREADS] < shares[0.5, ()]
    assert 70 < len(shares[0.25, ()]) < 130


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[[corpus]]\nname = ", "is not TOML"),
        ("corpus = 3", "must hold tables [[corpus]]"),
        ('[[corpus]]\nname = "a"', "corpus 1: input is missing"),
        ('[[corpus]]\nname = "a"\ninput = "{news}"\nlangage = "de"', "Did you mean language?"),
        ('[[corpus]]\nname = "a"\ninput = "{news}"\nshare = 2', "share = 2 must be"),
        ('[[corpus]]\nname = "a"\ninput = "{news}"\nlicense = ["MIT"]', "license = ['MIT'] must be text"),
        ('[[corpus]]\nname = "a"\ninput = "{news}"\ndate = 2024', "date = 2024 must be text"),
        ('[[corpus]]\nname = "a"\ninput = "{news}"\nformat = "word"', "format = 'word' is none of auto, text"),
        ('[[corpus]]\nname = "a"\ninput = "{news}"\nlanguage = "Klingon"', "Klingon"),
        ('[[corpus]]\nname = "a"\ninput = "{news}"\n[[corpus]]\nname = "b"\ninput = "{news}"', "is in two corpora"),
        ('[[corpus]]\nname = "a"\ninput = "{news}"\n[[corpus]]\nname = "a"\ninput = "x"', "2 corpora called 'a'"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_in_one_line(command, tmp_path: Path, content: str, expected: str) -> None:
    write_corpora(tmp_path)
    (tmp_path / "wrong.toml").write_text(content.format(news=tmp_path / "news.jsonl"))
    done = command("shard", "--inputs", tmp_path / "wrong.toml", "--output", tmp_path / "text")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert expected in done.stderr
    assert not (tmp_path / "text").exists()


@pytest.mark.parametrize("flags", [[], ["--input", "a.txt", "--inputs", "b.toml"]])
def test_one_of_input_and_inputs_is_needed(command, tmp_path: Path, flags: list[str]) -> None:
    done = command("shard", "--output", tmp_path / "text", *flags)
    assert done.returncode == 2
    assert "Give --input, with files or folders, or --inputs" in done.stderr


def test_the_corpus_of_input_is_named_on_the_cards_and_its_shards_stay_the_same(command, tmp_path: Path) -> None:
    write_corpora(tmp_path)
    (tmp_path / "books.txt").write_text(f"{ARTICLE['en']}\n\n{ARTICLE['de']}\n")
    files = ("--input", tmp_path / "news.jsonl", tmp_path / "books.txt", "--text_key", "body")
    facts = ("--corpus_name", "News <2024>", "--corpus_license", "CC0", "--corpus_url", "https://news.example.org")
    assert command("shard", *files, "--output", tmp_path / "plain").returncode == 0
    assert command("shard", *files, *facts, "--output", tmp_path / "named").returncode == 0
    assert rows_of(tmp_path / "named") == rows_of(tmp_path / "plain")

    plain, named = (read_manifest(str(tmp_path / name), "text") for name in ("plain", "named"))
    assert named.fingerprint == plain.fingerprint
    assert named.options == plain.options | {
        "corpus_name": "News <2024>",
        "corpus_license": "CC0",
        "corpus_url": "https://news.example.org",
    }
    vocab = ("--text", tmp_path / "named", "--output", tmp_path / "vocab", "--model", "wordpiece", "--size", 200)
    assert command("vocab", *vocab).returncode == 0
    pairs = ("--text", tmp_path / "named", "--vocab", tmp_path / "vocab", "--output", tmp_path / "pairs")
    assert command("pairs", *pairs, "--objective", "nsp", "--max_length", 32).returncode == 0
    for folder in ("named", "pairs"):
        page = (tmp_path / folder / "card.html").read_text()
        assert "News &lt;2024&gt;" in page and "CC0, https://news.example.org" in page and "402 (100.0%)" in page
        assert "Documents by source" in page and "agency" in page and "text" in page
    assert "CC0  https://news.example.org" in command("inspect", tmp_path / "pairs").stdout

    other = command("shard", *files, "--corpus_name", "Papers", "--output", tmp_path / "named")
    assert other.returncode == 2 and "--corpus_name News <2024>, and this command has Papers" in other.stderr


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--inputs", "corpora.toml", "--corpus_name", "A"], "Write it into corpora.toml, as name of each [[corpus]]"),
        (["--input", "news.jsonl", "--corpus_license", "CC0"], "--corpus_license needs --corpus_name"),
    ],
)
def test_facts_of_a_corpus_stand_with_its_files(
    command, tmp_path: Path, flags: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpora(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = command("shard", "--output", "text", *flags)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and expected in done.stderr
    assert not Path("text").exists()
