"""Unigram vocabularies, ours and those of tokenizers' `UnigramTrainer`, learned from the same parts of words.

    python benchmarks/unigram.py CORPUS.jsonl [...] [--sizes 8000,30000]

CORPUS.jsonl has a document in the key "text" of each line. Both learn as many pieces. The likelihood is that of all
segmentations, in nats per part of a word; theirs is also fitted to its pieces once more, as ours is in the end. Tokens
are those of the best segmentations. Seconds are of all threads.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "2"

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipeline.vocab.lattice import chunks_of
from pipeline.vocab.pretokenize import library_cutter
from pipeline.vocab.substrings import MAX_PIECE, Occurrences
from pipeline.vocab.unigram import learn_pieces
from pipeline.vocab.unigram_words import cut_parts, fold_words
from pipeline.vocab.words import CODE_POINTS, Words
from schemas import shards
from schemas.ragged import offsets_of

FITTING_ROUNDS = 3


def main() -> None:
    flags = argparse.ArgumentParser(description="Compares Unigram vocabularies.")
    flags.add_argument("corpora", nargs="+")
    flags.add_argument("--sizes", default="8000,30000")
    flags.add_argument("--learner", choices=("ours", "theirs"), help="learn alone and print pieces (for the table)")
    options = flags.parse_args()
    parts = read_parts(options.corpora)
    if options.learner:
        learn_alone(parts, options.learner, int(options.sizes))
        return

    strings = strings_of(parts)
    print(f"{len(strings):,} different parts, {parts.counts_N.sum():,} in all\n")
    print(
        "| size | | processor seconds | memory | nats a part | fitted again | tokens |\n|---|---|---|---|---|---|---|"
    )
    for size in map(int, options.sizes.split(",")):
        for learner in ("ours", "theirs"):
            command = [sys.executable, __file__, *options.corpora, "--sizes", str(size), "--learner", learner]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            learned = json.loads(done.stdout)
            pieces = dict(learned["pieces"])
            nats, tokens, fitted = judge(parts, strings, pieces)
            figures = f"{learned['seconds']:.1f} | {learned['megabytes']:,.0f} MB | {nats:.4f} | {fitted:.4f}"
            print(f"| {len(pieces):,} | {learner} | {figures} | {tokens:,} |", flush=True)


def read_parts(corpora: list[str]) -> Words:
    """Count the words of JSONL files and cut them, in lower case and without accents."""
    runs: Counter[str] = Counter()
    for path in corpora:
        for line in Path(path).read_text().splitlines():
            runs.update(json.loads(line)["text"].split())

    counts: Counter[str] = Counter()
    cut = library_cutter("unigram", lowercase=False)
    for run, count in runs.items():
        for word in cut(run):
            counts[word] += count
    table = pa.table([pa.array(list(counts), pa.string()), list(counts.values())], schema=shards.COUNTS_SCHEMA)
    folded = fold_words(Words.of(table), lowercase=True, keep_accents=False)
    return cut_parts(folded, np.ones(CODE_POINTS, dtype=bool))


def strings_of(parts: Words) -> list[str]:
    text = parts.characters_T.astype("<u4").tobytes().decode("utf-32-le")
    offsets = offsets_of(parts.lengths_N).tolist()
    return [text[offsets[i] : offsets[i + 1]] for i in range(len(offsets) - 1)]


def learn_alone(parts: Words, learner: str, size: int) -> None:
    """Learn and print pieces with their scores, the seconds and the most memory above what was there before."""
    strings = strings_of(parts)
    Path("/proc/self/clear_refs").write_text("5")  # forget what reading took
    before = peak_megabytes()
    started = time.process_time()
    if learner == "ours":
        learned = learn_pieces(parts, size)
        pieces = list(zip(learned.spellings, learned.scores, strict=True))
    else:
        pieces = library_pieces(strings, parts.counts_N.tolist(), size)

    seconds = time.process_time() - started
    megabytes = peak_megabytes() - before
    print(json.dumps({"seconds": seconds, "megabytes": megabytes, "pieces": pieces}))


def peak_megabytes() -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def library_pieces(strings: list[str], counts: list[int], size: int) -> list[tuple[str, float]]:
    """Train with tokenizers, which takes each part as often as it occurs."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    trainer = trainers.UnigramTrainer(
        vocab_size=size + 1, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    lines = (
        " ".join([string] * min(1000, count - done))
        for string, count in zip(strings, counts, strict=True)
        for done in range(0, count, 1000)
    )
    tokenizer.train_from_iterator(lines, trainer)
    vocab = json.loads(tokenizer.to_str())["model"]["vocab"]
    return [(piece, score) for piece, score in vocab if piece != "<unk>"]


def judge(parts: Words, strings: list[str], pieces: dict[str, float]) -> tuple[float, int, float]:
    """Return (nats a part, tokens of the best segmentations, nats a part after fitting)."""
    probability_S = np.exp(np.array(list(pieces.values())))
    chunks = chunks_of(parts.lengths_N, parts.counts_N, occurrences_of(strings, list(pieces)))
    nats = log_likelihood(strings, parts, dict(zip(pieces, probability_S.tolist(), strict=True)))
    model = Tokenizer(models.Unigram([("<unk>", -100.0), *pieces.items()], 0)).model
    lengths = np.array([len(model.tokenize(string)) for string in strings])

    for _ in range(FITTING_ROUNDS):
        expected_S = np.zeros(len(probability_S))
        for chunk in chunks:
            chunk.add_expected(probability_S, expected_S)
        expected_S = np.maximum(expected_S, 0.5)
        probability_S = expected_S / expected_S.sum()
    fitted = log_likelihood(strings, parts, dict(zip(pieces, probability_S.tolist(), strict=True)))
    return nats, int(lengths @ parts.counts_N), fitted


def occurrences_of(strings: list[str], pieces: list[str]) -> list[Occurrences]:
    number = {piece: i for i, piece in enumerate(pieces)}
    found: list[list[tuple[int, int]]] = [[] for _ in range(MAX_PIECE)]
    position = 0
    for string in strings:
        for start in range(len(string)):
            for length in range(1, min(MAX_PIECE, len(string) - start) + 1):
                piece = number.get(string[start : start + length])
                if piece is not None:
                    found[length - 1].append((position + start, piece))
        position += len(string)
    return [
        Occurrences(np.array([p for p, _ in layer], np.int32), np.array([i for _, i in layer], np.int32))
        for layer in found
    ]


def log_likelihood(strings: list[str], parts: Words, probability: dict[str, float]) -> float:
    """Return the mean over all parts in the corpus, by a plain loop over each string."""
    total = 0.0
    for string, count in zip(strings, parts.counts_N.tolist(), strict=True):
        forward = [1.0]
        for end in range(1, len(string) + 1):
            starts = range(max(0, end - MAX_PIECE), end)
            forward.append(sum(forward[start] * probability.get(string[start:end], 0.0) for start in starts))
        total += count * float(np.log(max(forward[-1], 1e-300)))
    return total / int(parts.counts_N.sum())


if __name__ == "__main__":
    main()
