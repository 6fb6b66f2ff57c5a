import json
from pathlib import Path

import pyarrow as pa

from pipeline.steps.vocab import add_usages
from pipeline.vocab.counting import BY_SOURCE
from pipeline.vocab.statistics import VocabularyUse, compare_vocabularies, describe_usage
from schemas.manifest import read_manifest
from schemas.vocabulary import read_vocabulary


def test_what_a_vocabulary_does_to_its_text(vocab: Path) -> None:
    told = read_manifest(str(vocab), "vocab").statistics
    assert told["coverage"] == 1.0 and told["unknown_words"] == 0
    assert 1.0 <= told["tokens_per_word"] < 2.0
    assert len(told["longest"][0]) >= len(told["longest"][-1])
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
    assert sum(source["words"] for source in told["by_source"].values()) == told_words(vocab)


def told_words(vocab: Path) -> int:
    return read_manifest(str(vocab), "vocab").totals["words"]


def test_two_vocabularies_are_told_apart(command, vocab: Path, byte_vocab: Path, tmp_path: Path) -> None:
    data = (vocab / "tokenizer.json").read_bytes()
    content = json.loads(data)
    ids = content["model"]["vocab"]
    place = ids.pop("the")
    ids["qqq"] = place
    lines = "\n".join(compare_vocabularies((data, json.dumps(content).encode()), ("a", "b"), [("the", 5), ("cat", 2)]))
    assert "only in A   the" in lines and "only in B   qqq" in lines and "    the: the   |   t ##h" in lines
    done = command("inspect", vocab, byte_vocab)
    assert done.returncode == 0 and "shared" in done.stdout
    assert command("inspect", vocab, tmp_path).returncode == 3
