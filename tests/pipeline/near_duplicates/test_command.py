"""`shard --dedup minhash` as a user runs it."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.conftest import made
from tests.pipeline.text_rows import text_rows

WORDS = [f"word{i}" for i in range(3000)]


def planted(originals: int, seed: int) -> tuple[list[str], list[str]]:
    """(originals, near copies of the first third of them): 300 words each, 4 of them changed."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=300)) + "." for _ in range(originals)]
    copies = []
    for text in texts[: originals // 3]:
        words = text.split()
        for place in rng.sample(range(300), 4):
            words[place] = rng.choice(WORDS)
        copies.append(" ".join(words))
    return texts, copies


def kept(command, folder: Path, texts: list[str]) -> set[str]:
    """The documents left of the texts by `shard --dedup minhash`."""
    folder.mkdir()
    (folder / "x.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    flags = ("--dedup", "minhash", "--num_shards", 4)
    made(command, folder / "out", "shard", "--input", folder / "x.jsonl", *flags)
    return {" ".join(row["sentences"]) for row in text_rows(folder / "out")}


def test_planted_near_duplicates_are_found_and_others_stay(command, tmp_path: Path) -> None:
    """4 of 300 words changed break up to 20 of 296 shingles: similarity 0.87, found with probability 0.998."""
    texts, copies = planted(600, 0)
    left = kept(command, tmp_path / "a", [*texts, *copies])
    both = sum(text in left and copy in left for text, copy in zip(texts, copies, strict=False))
    assert both / len(copies) < 0.03  # recall
    assert all(text in left for text in texts[len(copies) :])  # precision: nothing else is touched
    assert all(text in left or copy in left for text, copy in zip(texts, copies, strict=False))

    backwards = kept(command, tmp_path / "b", [*copies[::-1], *texts[::-1]])
    assert backwards == left  # which copy stays does not depend on order
