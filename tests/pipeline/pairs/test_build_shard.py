from pathlib import Path

import numpy as np
import pytest

from pipeline.pairs.build_shard import PairShard, build_shard
from pipeline.pairs.corpus import PairOptions
from pipeline.pairs.encoding import Encoder
from schemas import shards
from schemas.manifest import read_manifest
from schemas.row_checks import PairLimits, check_pairs
from schemas.vocabulary import read_vocabulary
from tests.pipeline.text_rows import text_rows


@pytest.mark.parametrize("folder", ["vocab", "byte_vocab"])
def test_rows_are_laid_out_as_their_model_wants(request, text: Path, folder: str) -> None:
    path: Path = request.getfixturevalue(folder)
    vocabulary = read_vocabulary(str(path))
    encoder = Encoder((path / "tokenizer.json").read_bytes(), vocabulary.model)
    shard = read_manifest(str(text), "text").shards[0]
    options = PairOptions("nsp", 32, 0.1, 0)
    target = PairShard("pairs.arrow", str(text), shard)
    data, report = build_shard(target, encoder, vocabulary, options)
    table = shards.decode_table(data, "pairs.arrow", shards.pairs_schema(vocabulary.size))
    limits = PairLimits(vocabulary.size, 32, labeled=True, separators=vocabulary.separators)
    check_pairs(table, "pairs.arrow", limits)
    cls, sep = vocabulary.special_id("cls"), vocabulary.special_id("sep")
    between = 1 if vocabulary.model == "wordpiece" else 2
    for row in table.to_pylist():
        ids, b = row["input_ids"], row["segment_b_start"]
        assert ids[0] == cls and ids[-1] == sep and ids[b - between : b] == [sep] * between
        assert np.isin(ids, vocabulary.special_ids).sum() == 2 + between
        assert len(ids) <= 32
        starts = [vocabulary.starts_word_V[i] and i not in vocabulary.special_ids for i in ids]
        assert row["word_starts"] == [s or t for s, t in zip(row["word_starts"], starts, strict=True)]
    assert sum(report["labels"]) == table.num_rows == report["shard"]["rows"]
    assert sum(i * n for i, n in enumerate(report["lengths"])) == report["shard"]["tokens"]


def test_labels_are_true_of_the_text_itself(text: Path, pairs: Path) -> None:
    """Decode every row and find its segments in the documents that it names."""
    documents = {row["document"]: " ".join(row["sentences"]).lower() for row in text_rows(text)}
    vocabulary = read_vocabulary(str(pairs / "vocabulary"))
    seen = 0
    for shard in read_manifest(str(pairs), "pairs").shards:
        rows = shards.decode_table((pairs / shard.path).read_bytes(), shard.path, shards.pairs_schema(vocabulary.size))
        for row in rows.to_pylist():
            a, b = (squeezed(vocabulary, part) for part in segments(row))
            in_a, in_b = (squeeze(documents[row[name]]) for name in ("document_a", "document_b"))
            assert a in in_a and b in in_b
            assert (row["document_a"] == row["document_b"]) == (row["pair_label"] == 0)
            if row["pair_label"] == 0 and len(row["input_ids"]) < 32:  # nothing was cut between the segments
                assert a + b in in_a
            seen += 1
    assert seen > 100


def segments(row: dict) -> tuple[list[int], list[int]]:
    ids, b = row["input_ids"], row["segment_b_start"]
    return ids[1 : b - 1], ids[b:-1]


def squeeze(text: str) -> str:
    return text.replace(" ", "")


def squeezed(vocabulary, ids: list[int]) -> str:
    return "".join(vocabulary.readable(i) for i in ids)
