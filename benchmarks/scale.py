"""Memory of each step at two sizes of a corpus, and the cost of a job at any size.

    python benchmarks/scale.py corpus FOLDER --megabytes 300        write a corpus of made-up words
    python benchmarks/scale.py memory FOLDER                        run the jobs on it; peak memory by step
    python benchmarks/scale.py model                                what 16 GB, 1 TB and 10 TB cost, by arithmetic

The words follow Zipf's law, and the number of different words grows with the corpus as Heaps' law says, so the
vocabulary's memory is realistic. One document in five nearly repeats another one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

DOCUMENT_WORDS = 500  # on average: 3 KB
SENTENCE_WORDS = 18
FILE_MEGABYTES = 50
NEAR_DUPLICATES = 0.2


def distinct_words(megabytes: int) -> int:
    """Return how many different words a corpus of this size has: 1.2 million in 236 MB of web text, by Heaps' law."""
    return int(1.2e6 * (megabytes / 236) ** 0.6)


def made_up_words(count: int) -> np.ndarray:
    """Return (count,) different words of lowercase letters; frequent words are short."""
    draws = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words: dict[str, None] = {}
    while len(words) < count:
        length = 2 + int(np.log2(1 + len(words) / 50))
        lot = draws.choice(letters, size=(4096, length))
        words |= dict.fromkeys("".join(row) for row in lot)
    return np.array(list(words)[:count], dtype=object)


def documents(megabytes: int) -> Iterator[str]:
    """Yield documents until they have so many megabytes together."""
    draws = np.random.default_rng(2)
    words = made_up_words(distinct_words(megabytes))
    left = megabytes * 1_000_000
    previous = ["nothing"]

    while left > 0:
        if draws.random() < NEAR_DUPLICATES:
            chosen = previous.copy()
            chosen[int(draws.integers(len(chosen)))] = "changed"
        else:
            count = 1 + int(draws.exponential(DOCUMENT_WORDS))
            # A uniform draw on a logarithmic scale of ranks is Zipf's law with exponent 1.
            ranks = np.exp(draws.random(count) * np.log(len(words))).astype(np.int64) - 1
            chosen = words[ranks].tolist()
            previous = chosen

        text = _sentences(chosen)
        left -= len(text)
        yield text


def _sentences(words: list[str]) -> str:
    sentences = []
    for start in range(0, len(words), SENTENCE_WORDS):
        sentence = " ".join(words[start : start + SENTENCE_WORDS])
        sentences.append(sentence.capitalize() + ".")
    return " ".join(sentences)


def write_corpus(folder: Path, megabytes: int) -> None:
    """Write JSON lines files of FILE_MEGABYTES each."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = documents(megabytes)
    for number in range(-(-megabytes // FILE_MEGABYTES)):
        with open(folder / f"{number:05d}.jsonl", "w") as file:
            written = 0
            while written < FILE_MEGABYTES * 1_000_000:
                text = next(texts, None)
                if text is None:
                    return
                written += file.write(json.dumps({"text": text}) + "\n")


def main() -> None:
    flags = argparse.ArgumentParser(description="Memory by step, and the cost of a job at any size.")
    commands = flags.add_subparsers(required=True, dest="command")
    corpus = commands.add_parser("corpus")
    corpus.add_argument("folder", type=Path)
    corpus.add_argument("--megabytes", type=int, default=300)
    parsed = flags.parse_args()
    write_corpus(parsed.folder, parsed.megabytes)


if __name__ == "__main__":
    main()
