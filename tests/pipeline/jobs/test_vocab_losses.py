"""What a vocabulary loses of its text is said on the terminal: unknown words, and accents that are letters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.manifest import read_manifest
from schemas.vocabulary import read_vocabulary

HINDI = ["राम की किताब मेज पर है।", "सीता के घर को देखो।", "तुम को क्या हुआ?"]
FRENCH = ["L'élève arrive à l'école. Il était déjà là."]
RUNS = ["ab" * 60, "cd" * 70]


@pytest.fixture
def text_of(command, tmp_path: Path):
    def make(sentences: list[str], *flags: str) -> Path:
        folder = tmp_path / f"text{len(list(tmp_path.iterdir()))}"
        lines = [json.dumps({"text": sentence}) for sentence in sentences for _ in range(3)]
        (tmp_path / "in.jsonl").write_text("\n".join(lines))
        assert command("shard", "--input", tmp_path / "in.jsonl", "--output", folder, *flags).returncode == 0
        return folder

    return make


def test_unknown_words_are_counted_and_warned_of(command, text_of, tmp_path: Path) -> None:
    text = text_of([f"{run} One. Two {run}." for run in RUNS])
    words = ("--text", text, "--size", 300, "--output")
    made = command("vocab", *words, tmp_path / "wordpiece", "--model", "wordpiece")
    assert "12 x occurrence of a word above 100 characters" in made.stdout
    assert "words that become [UNK]: 33.333%" in made.stdout
    assert "warning: 97.0% of the text" in made.stderr and "--model unigram or --model bytebpe" in made.stderr

    flags = ("--text", text, "--objective", "full_sentences", "--vocab", tmp_path / "wordpiece")
    pairs = command("pairs", *flags, "--output", tmp_path / "pairs")
    assert "tokens that are [UNK]: 12" in pairs.stdout and "of the tokens are [UNK]" in pairs.stderr

    bytebpe = command("vocab", *words, tmp_path / "bytebpe", "--model", "bytebpe")
    assert "words that become [UNK]: 0.000%" in bytebpe.stdout and "warning" not in bytebpe.stderr


@pytest.mark.parametrize("model", ["wordpiece", "unigram", "bytebpe"])
def test_nothing_left_to_learn_from_is_one_line(command, text_of, tmp_path: Path, model: str) -> None:
    flags = ("--model", model, "--size", 400, "--output", tmp_path / "vocab")
    done = command("vocab", "--text", text_of(HINDI), *flags, "--min_word_count", 1000)
    assert done.returncode == 3 and "--min_word_count 1,000. Lower it." in done.stderr
    if model == "wordpiece":
        done = command("vocab", "--text", text_of(RUNS), *flags)
        assert done.returncode == 3 and "No word is left to learn from: 6 words have more than 100" in done.stderr


def test_marks_that_are_letters_are_kept_by_default(command, text_of, tmp_path: Path) -> None:
    text = text_of(HINDI, "--language", "hi")
    for model, flag in (("wordpiece", "lowercase"), ("unigram", "keep_accents")):
        made = command("vocab", "--text", text, "--model", model, "--size", 120, "--output", tmp_path / model)
        assert "marks are letters in the text's language (hi), so accents are kept" in made.stderr
        assert read_manifest(str(tmp_path / model), "vocab").options[flag] is (model == "unigram")
        assert any("की" in token for token in read_vocabulary(str(tmp_path / model)).tokens)

    counts = ("--counts", tmp_path / "counts", "--model", "wordpiece", "--size", 120)
    assert command("vocab", "--text", text, *counts, "--output", tmp_path / "a").returncode == 0
    from_counts = command("vocab", *counts, "--output", tmp_path / "b")
    assert "so accents are kept" in from_counts.stderr
    assert (tmp_path / "a/vocab.txt").read_bytes() == (tmp_path / "b/vocab.txt").read_bytes()

    asked = command("vocab", "--text", text, *counts[2:], "--lowercase", "--output", tmp_path / "c")
    assert "ignoring accents changes" in asked.stderr and "के" not in (tmp_path / "c/vocab.txt").read_text()


@pytest.mark.parametrize(("model", "flag"), [("wordpiece", "--no_lowercase"), ("unigram", "--keep_accents")])
def test_accents_that_are_lost_are_noted(command, text_of, tmp_path: Path, model: str, flag: str) -> None:
    text = text_of(FRENCH)
    words = ("--text", text, "--model", model, "--size", 120, "--output")
    noted = command("vocab", *words, tmp_path / "a").stderr
    assert "ignoring accents changes 25.0% of the letters" in noted and "(é à è)" in noted and flag in noted
    assert "accents" not in command("vocab", *words, tmp_path / "b", flag).stderr
    assert "accents" not in command("vocab", *words, tmp_path / "c", "--model", "bytebpe", "--size", 400).stderr
