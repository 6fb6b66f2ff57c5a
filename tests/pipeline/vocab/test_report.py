import json
from pathlib import Path

import pyarrow as pa

from pipeline.jobs.vocab import add_usages
from pipeline.vocab.counting import BY_SOURCE
from pipeline.vocab.report import VocabularyUse, compare_vocabularies, describe_usage
from schemas.manifest import read_manifest
from schemas.vocabulary import read_vocabulary


def test_what_a_vocabulary_does_to_its_text(vocab: Path) -> None:
    manifest = read_manifest(str(vocab), "vocab")
    reported = manifest.statistics
    assert reported["coverage"] == 1.0 and reported["unknown_words"] == 0
    assert 1.0 <= reported["tokens_per_word"] < 2.0
    assert len(reported["longest"][0]) >= len(reported["longest"][-1])
    data = (vocab / "tokenizer.json").read_bytes()
    rows = [("the", 0, 3), ("\u4e2d", 1, 1), ("the", 1, 1)]
    by_source = pa.Table.from_pylist([dict(zip(BY_SOURCE.names, row, strict=True)) for row in rows], BY_SOURCE)
    parts = []
    for part in (by_source.slice(0, 1), by_source.slice(1)):
        use = VocabularyUse(data, 2)
        use.add(part)
        parts.append(use.usage)
    described = describe_usage(read_vocabulary(str(vocab)), add_usages(parts), ["a", "b"])
    assert (described["coverage"], described["unknown_words"], described["tokens_per_word"]) == (0.8, 1, 1.0)
    assert described["by_source"]["b"] == {"words": 2, "tokens_per_word": 1.0, "unknown_words": 1, "coverage": 0.5}
    assert described["unknown_character_share"] == round(1 / 13, 6)
    assert sum(source["words"] for source in reported["by_source"].values()) == manifest.totals["words"]


def test_two_vocabularies_are_told_apart(command, vocab: Path, byte_vocab: Path, tmp_path: Path) -> None:
    data = (vocab / "tokenizer.json").read_bytes()
    content = json.loads(data)
    ids = content["model"]["vocab"]
    place = ids.pop("the")
    ids["qqq"] = place
    padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    content["padding"] = padding | {"pad_to_multiple_of": None}
    lines = "\n".join(compare_vocabularies((data, json.dumps(content).encode()), ("a", "b"), [("the", 5), ("cat", 2)]))
    assert "only in A   the" in lines and "only in B   qqq" in lines and "    the: the   |   t ##h" in lines
    done = command("inspect", vocab, byte_vocab)
    assert done.returncode == 0 and "shared" in done.stdout
    assert "an empty folder" in command("inspect", vocab, tmp_path).stdout


def test_a_character_that_a_unigram_vocabulary_lacks_is_shown_as_unknown(vocab: Path, unigram_vocab: Path) -> None:
    """The library returns the character itself as the token."""
    jsons = [(folder / "tokenizer.json").read_bytes() for folder in (vocab, unigram_vocab)]
    for first, second in (jsons, jsons[::-1]):
        lines = "\n".join(compare_vocabularies((first, second), ("a", "b"), [("\u05e9", 1)]))
        assert "<unk>" in lines and "over 1 words" in lines


def test_byte_level_tokens_are_compared_and_shown_as_text(
    command, vocab: Path, byte_vocab: Path, tmp_path: Path
) -> None:
    """The marks of spaces and of the insides of words do not make a difference, and bytes of a character are text."""
    done = command("inspect", vocab, byte_vocab)
    only_in_b = next(line for line in done.stdout.splitlines() if line.startswith("only in B")).split()
    assert "\u0120" not in done.stdout and not {"\u2423the", "the"} & set(only_in_b)
    different = done.stdout.partition("most frequent first")[2]
    assert "    the: " not in different

    thai = "\u0e2b\u0e21\u0e32 \u0e2d\u0e32\u0e01\u0e32\u0e28 "
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": f"{thai * 40}. {thai * 30}."}) + "\n")
    text, made, pairs = (str(tmp_path / name) for name in ("text", "vocab", "pairs"))
    for arguments in (
        ("shard", "--input", tmp_path / "in.jsonl", "--output", text, "--sentence_splitter", "newline"),
        ("vocab", "--text", text, "--output", made, "--model", "bytebpe", "--size", 270),
        ("pairs", "--text", text, "--vocab", made, "--output", pairs, "--objective", "full_sentences"),
    ):
        done = command(*arguments)
        assert done.returncode == 0, done.stderr

    shown = [command("inspect", path).stdout for path in (made, pairs, f"{made}/word_counts.arrow")]
    shown.append((tmp_path / "pairs" / "card.html").read_text())
    for page in shown:
        assert "\ufffd" not in page and "\u00e0\u00b8" not in page
    assert thai.strip() in shown[1] and "\u2423\u0e2b\u0e21\u0e32" in shown[2]
