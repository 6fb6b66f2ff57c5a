"""Scripts that ignoring accents would destroy: what the language decides, and what `vocab` says of the text itself."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.conftest import made

TEXTS = {
    "hi": "\u0915\u0940 \u0915\u0947 \u0915\u094b \u092a\u0939\u093e\u0921\u093c \u0938\u0947. ",
    "ko": "\uc624\ub298\uc740 \ub0a0\uc528\uac00 \uc88b\ub2e4. ",
    "vi": "ma m\u00e1 m\u00e0 m\u1ea3 m\u00e3 m\u1ea1. ",
    "yo": "\u1eccK\u1ecc\u0301 \u1ecdk\u1ecd\u0301 oko \u1ecck\u1ecd\u0300 \u1ecd\u0300k\u1ecd\u0300. ",
    "en": "The caf\u00e9 opens at noon, and every guest of the house is welcome to stay, to read, to write "
    "letters and to talk with all the others until late in the evening. \u2764\ufe0f \u2764\ufe0f ",
}


@pytest.fixture(scope="module")
def texts(command, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Text folders by language, and `wrong`, which is Hindi said to be English."""
    folder = tmp_path_factory.mktemp("accents")
    found = {}
    for name, language in [*zip(TEXTS, TEXTS, strict=True), ("wrong", "hi")]:
        source = folder / f"{name}.jsonl"
        source.write_text("".join(json.dumps({"text": f"{i} {TEXTS[language]}" * 9}) + "\n" for i in range(6)))
        code = "en" if name == "wrong" else language
        found[name] = made(command, folder / name, "shard", "--input", source, "--language", code)
    return found


@pytest.mark.parametrize(
    ("text", "flags", "note", "warning"),
    [
        ("en", "--model wordpiece", "", ""),
        ("hi", "--model wordpiece", "Hindi (hi)", ""),
        ("hi", "--model unigram", "--no_keep_accents", ""),
        ("ko", "--model wordpiece --lowercase", "", "100.0% of the letters"),
        ("vi", "--model unigram --special_tokens xlnet --no_keep_accents", "", "Give --keep_accents"),
        ("wrong", "--model wordpiece", "", "Give --no_lowercase"),
    ],
)
def test_accents_are_kept_where_they_are_letters_or_their_loss_is_told(
    command, texts: dict[str, Path], tmp_path: Path, text: str, flags: str, note: str, warning: str
) -> None:
    vocab = ("vocab", "--text", texts[text], "--output", tmp_path / "vocab", "--size", 200)
    done = command(*vocab, *flags.split())
    assert done.returncode == 0, done.stderr
    assert (note in done.stderr, "Note:" in done.stderr) == (True, note != "")
    assert (warning in done.stderr, "warning: ignoring accents" in done.stderr) == (True, warning != "")

    tokenizer = Tokenizer.from_file(str(tmp_path / "vocab" / "tokenizer.json"))
    words = TEXTS["hi" if text == "wrong" else text].replace(".", "").split()
    kept = {tuple(tokenizer.encode(word, add_special_tokens=False).ids) for word in words}
    if note:
        assert len(kept) == len(set(words))


def test_wordpiece_ignores_case_alone(command, texts: dict[str, Path], tmp_path: Path) -> None:
    vocab = ("vocab", "--text", texts["yo"], "--output", tmp_path, "--model", "wordpiece", "--size", 200)
    done = command(*vocab, "--lowercase", "--keep_accents")
    assert done.returncode == 0 and "accents" not in done.stderr, done.stderr
    cut = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(TEXTS["yo"], add_special_tokens=False).tokens
    words = ["\u1ecdk\u1ecd\u0301"] * 2 + ["oko", "\u1ecdk\u1ecd\u0300", "\u1ecd\u0300k\u1ecd\u0300", "."]
    assert cut == words
    assert json.loads((tmp_path / "manifest.json").read_text())["statistics"]["coverage"] == 1

    done = command(*vocab, "--overwrite", "--no_keep_accents")
    assert done.returncode == 2 and "--no_keep_accents changes nothing with --model wordpiece" in done.stderr


def test_counts_know_the_language_of_their_text(command, texts: dict[str, Path], tmp_path: Path) -> None:
    """The default and the warning are the same from counts alone."""
    words = ("--model", "wordpiece", "--size", 200, "--counts", tmp_path / "counts")
    first = command("vocab", "--text", texts["hi"], "--output", tmp_path / "a", *words)
    second = command("vocab", "--output", tmp_path / "b", *words)
    forced = command("vocab", "--output", tmp_path / "c", *words, "--lowercase")
    assert [done.returncode for done in (first, second, forced)] == [0, 0, 0], forced.stderr
    assert "Hindi (hi)" in second.stderr and "Give --no_lowercase" in forced.stderr
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()


def test_rare_words_of_another_script_hide_no_marks(command, tmp_path: Path) -> None:
    source = tmp_path / "mixed.jsonl"
    ascii_words = " ".join(f"word{number}" for number in range(30_000))
    rows = [{"text": TEXTS["hi"] * 30_000}, {"text": ascii_words}, {"text": "Z" * 1_000_000}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command("shard", "--input", source, "--output", tmp_path / "text").returncode == 0
    learn = ("vocab", "--model", "wordpiece", "--size", 200, "--counts", tmp_path / "counts", "--lowercase")
    assert command(*learn, "--text", tmp_path / "text", "--output", tmp_path / "a").returncode == 0
    done = command(*learn, "--output", tmp_path / "b")
    assert "warning: ignoring accents" in done.stderr
