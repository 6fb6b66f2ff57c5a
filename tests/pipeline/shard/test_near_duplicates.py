import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.shard.near_duplicates import all_but_smallest, band_keys, minhash_signature
from schemas import shards
from schemas.manifest import read_manifest

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
    done = command(
        "shard",
        "--input",
        folder / "x.jsonl",
        "--output",
        folder / "out",
        "--dedup",
        "minhash",
        "--num_shards",
        4,
        "--direct_num_workers=2",
    )
    assert done.returncode == 0, done.stderr
    found = set()
    for shard in read_manifest(str(folder / "out"), "text").shards:
        table = shards.decode_table((folder / "out" / shard.path).read_bytes(), shard.path, shards.TEXT_SCHEMA)
        found |= {" ".join(sentences) for sentences in table["sentences"].to_pylist()}
    return found


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


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_equal_minima_estimate_similarity(share: float) -> None:
    """Two documents that share a prefix of their words: the estimate is within four deviations of the truth."""
    common = int(2000 * share)
    one, two = (" ".join([*WORDS[:common], *(f"{name}{i}" for i in range(2000 - common))]) for name in ("a", "b"))
    estimate = np.mean(minhash_signature([one]) == minhash_signature([two]))
    truth = (common - 4) / (2 * 1996 - (common - 4))
    assert abs(estimate - truth) < 4 * (truth * (1 - truth) / 128) ** 0.5


def test_chinese_is_compared_by_characters() -> None:
    text = "".join(chr(0x4E00 + i % 700) for i in range(800))
    changed = text[:400] + "\u4e8c" + text[401:]
    assert np.mean(minhash_signature([text]) == minhash_signature([changed])) > 0.9


def test_bands_agree_when_their_minima_do() -> None:
    signature = minhash_signature(["some words that make a few shingles"])
    other = signature.copy()
    other[8 * 3] ^= 1
    keys = band_keys(np.stack([signature, other]))
    assert (keys[0] == keys[1]).tolist() == [i != 3 for i in range(16)]
    assert len(set(keys[0].tolist())) == 16


@given(st.lists(st.lists(st.integers(0, 20), min_size=2, max_size=2), max_size=20))
def test_groups_keep_their_smallest(pairs: list[list[int]]) -> None:
    group: dict[int, set[int]] = {}
    for a, b in pairs:
        joined = group.get(a, {a}) | group.get(b, {b})
        group |= dict.fromkeys(joined, joined)
    assert all_but_smallest(pairs) == {member for member, others in group.items() if member != min(others)}
