"""shard --language auto to pairs of one language: what a user with text in several languages gets."""

from __future__ import annotations

import json
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pipeline.shard.detection import model_hash
from schemas import shards
from schemas.manifest import Manifest, read_manifest
from tests.pipeline.beam_flags import THREADS
from tests.pipeline.shard.test_detection import ARTICLE, UNKNOWN_LANGUAGES
from tests.pipeline.text_rows import text_rows

MANY = ("en", "de", "ja", "th", "ru")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents in five languages: 40 in English, and 10 in each of the others."""
    path = tmp_path_factory.mktemp("languages") / "corpus.jsonl"
    texts = [
        (code, f"{ARTICLE[code]} {number} {ARTICLE[code]}")
        for code in MANY
        for number in range(40 if code == "en" else 10)
    ]
    path.write_text("".join(json.dumps({"text": text, "source": f"in {code}"}) + "\n" for code, text in texts))
    return path


@pytest.fixture(scope="module")
def text(command, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("found") / "text"
    done = command("shard", "--input", corpus, "--output", output, "--language", "auto", "--num_shards", 3)
    assert done.returncode == 0, done.stderr
    assert "en 40, " in done.stdout + done.stderr
    return output


def ledger_of(manifest: Manifest) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for entry in manifest.ledger:
        counts[entry.reason] += entry.count
    return dict(counts)


def test_each_document_has_its_language(text: Path) -> None:
    rows = text_rows(text)
    assert {row["source"] for row in rows} == {f"in {code}" for code in MANY}
    assert all(row["source"] == f"in {row['language']}" and 0.5 < row["confidence"] <= 1 for row in rows)
    assert {len(row["sentences"]) for row in rows if row["language"] == "ja"} == {2}, (
        "a Japanese full stop ends sentences"
    )

    manifest = read_manifest(str(text), "text")
    assert manifest.statistics["documents_by_language"] == {"de": 10, "en": 40, "ja": 10, "ru": 10, "th": 10}
    assert manifest.options["language_model"] == model_hash()


@pytest.mark.parametrize(("dedup", "flags"), [("none", ()), ("exact", (*THREADS, "--shuffle", "merged"))])
def test_workers_and_the_order_of_files_do_not_show(
    command, corpus: Path, tmp_path: Path, dedup: str, flags: tuple[str, ...]
) -> None:
    lines = corpus.read_text().splitlines(keepends=True)
    lines += lines[:30]
    for name, part in (("a", lines), ("b1", lines[1::2][::-1]), ("b2", lines[::2])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part))
    fingerprints = set()
    for output, inputs, more in (("one", ["a"], ()), ("other", ["b2", "b1"], flags)):
        paths = [str(tmp_path / f"{name}.jsonl") for name in inputs]
        words = ("shard", "--input", *paths, "--output", tmp_path / output, "--language", "auto", "--num_shards", 3)
        assert command(*words, "--dedup", dedup, "--holdout", 0.2, *more).returncode == 0
        fingerprints.add(read_manifest(str(tmp_path / output), "text").fingerprint)
        fingerprints.add(read_manifest(f"{tmp_path / output}_heldout", "text").fingerprint)
    assert len(fingerprints) == 2


def test_languages_that_are_not_wanted_are_counted(command, corpus: Path, tmp_path: Path) -> None:
    words = ("shard", "--input", corpus, "--output", tmp_path / "text", "--language", "auto")
    assert command(*words, "--languages", "German, ru", "--min_language_confidence", 0.3).returncode == 0
    manifest = read_manifest(str(tmp_path / "text"), "text")
    assert manifest.totals["documents"] == 20
    assert ledger_of(manifest) == {"language en": 40, "language ja": 10, "language th": 10}
    assert manifest.options["languages"] == "de,ru"


def test_text_in_a_language_that_is_not_known_is_counted(command, tmp_path: Path) -> None:
    texts = [ARTICLE["de"], *UNKNOWN_LANGUAGES.values()]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = ("shard", "--input", tmp_path / "in.jsonl", "--language", "auto")
    done = command(*words, "--output", tmp_path / "text")
    assert "documents by language: und 3, de 1" in done.stdout + done.stderr
    assert "und: those whose language was not sure" in done.stdout + done.stderr

    assert command(*words, "--output", tmp_path / "de", "--languages", "de").returncode == 0
    assert ledger_of(read_manifest(str(tmp_path / "de"), "text")) == {"language und": 3}
    assert command(*words, "--output", tmp_path / "und", "--languages", "und").returncode == 0
    assert ledger_of(read_manifest(str(tmp_path / "und"), "text")) == {"language de": 1}


def test_rules_judge_the_languages_that_they_fit(command, corpus: Path, tmp_path: Path) -> None:
    """min_punctuated_lines needs marks at the end of sentences, which Thai does not write."""
    (tmp_path / "rules.toml").write_text("[rules]\nmin_punctuated_lines = true\n")
    lines = [json.dumps({"text": " ".join([ARTICLE[code].rstrip(".。")] * 3)}) for code in ("en", "th")]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    words = ("shard", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "text", "--language", "auto")
    assert command(*words, "--filters", tmp_path / "rules.toml").returncode == 0
    assert [row["language"] for row in text_rows(tmp_path / "text")] == ["th"]


def test_pairs_of_one_language_have_its_documents_alone(command, text: Path, tmp_path: Path) -> None:
    vocab = tmp_path / "vocab"
    done = command("vocab", "--text", text, "--output", vocab, "--model", "wordpiece", "--size", 400)
    assert done.returncode == 0
    assert read_manifest(str(vocab), "vocab").options["lowercase"] is False, "no language has most documents"

    pairs = ("pairs", "--text", text, "--vocab", vocab, "--objective", "full_sentences")
    assert command(*pairs, "--output", tmp_path / "de", "--languages", "de").returncode == 0
    manifest = read_manifest(str(tmp_path / "de"), "pairs")
    assert ledger_of(manifest) == {"language en": 40, "language ja": 10, "language ru": 10, "language th": 10}
    german = {row["document"] for row in text_rows(text) if row["language"] == "de"}
    schema = shards.pairs_schema(manifest.options["vocabulary_size"])
    tables = [
        shards.decode_table((tmp_path / "de" / one.path).read_bytes(), one.path, schema) for one in manifest.shards
    ]
    assert {number for table in tables for number in table["document_a"].to_pylist()} <= german

    refused = command(*pairs, "--output", tmp_path / "fr", "--languages", "de,fr")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "'fr'" in refused.stderr and "Most are in en" in refused.stderr


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--languages", "de"], "--languages needs --language auto"),
        (["--language", "en", "--min_language_confidence", "0.5"], "--min_language_confidence needs --language auto"),
        (["--language", "auto", "--languages", "Klingon"], "Klingon"),
        (["--language", "auto", "--languages", "grc"], "none of the 176 languages"),
        (["--language", "auto", "--languages", ","], "names no language"),
    ],
)
def test_wrong_flags_are_refused_in_one_line(
    command, corpus: Path, tmp_path: Path, flags: list[str], expected: str
) -> None:
    done = command("shard", "--input", corpus, "--output", tmp_path / "text", *flags)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert expected in done.stderr
    assert not (tmp_path / "text").exists()


@pytest.mark.parametrize(
    ("languages", "flags", "warning"),
    [
        (["de"], [], "the text looks like German, and is read by the rules of English,* Give --language de."),
        (["de", "ru"], [], "the text looks like several languages, * Give --language auto."),
        (["de"], ["--language", "de"], ""),
        (["en", "de"], [], ""),
    ],
)
def test_text_in_another_language_than_assumed_is_told(
    command, tmp_path: Path, languages: list[str], flags: list[str], warning: str
) -> None:
    for code in languages:
        for number in range(8):
            (tmp_path / f"{code}{number}.txt").write_text(f"{number}. {ARTICLE[code]}\n\n" * 3)
    done = command("shard", "--input", tmp_path / "*.txt", "--output", tmp_path / "out", *flags)
    assert done.returncode == 0
    if warning:
        assert fnmatch(done.stderr, f"clozeline: warning: {warning}\n"), done.stderr
    else:
        assert "looks like" not in done.stderr


def test_inspect_names_the_language_for_shard(run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{ARTICLE['de']}\n\n" * 3)
    assert " --language de" in run("python", "-m", "pipeline", "inspect", tmp_path).stdout
