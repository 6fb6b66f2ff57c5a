"""Compares our Unigram vocabularies with those of tokenizers' `UnigramTrainer`, trained on the same parts of words.

    python benchmarks/unigram.py CORPUS.jsonl [...] [--sizes 8000,30000]

CORPUS.jsonl has a document in the key "text" of each line. Both train the same number of pieces. The likelihood is over
all segmentations, in nats per part of a word. It is also computed after fitting the probabilities of the pieces again,
which our trainer does at its end. Tokens are counted in the best segmentations. Seconds are CPU seconds of all threads.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ["RAYON_NUM_THREADS"] = "2"

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipeline.vocab.counted_words import CODE_POINTS, Words, cut_parts, fold_words
from pipeline.vocab.lattice import MAX_PIECE, Floats, Occurrences, chunks_of
from pipeline.vocab.unigram import MIN_EXPECTED, learn_pieces
from pipeline.words.rules import library_cutter
from schemas import shards
from schemas.ragged import offsets_of

FITTING_ROUNDS = 3

LINE = 1000
"""Maximum copies of a part in one line of text for tokenizers' trainer."""


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
    print("| size | | processor seconds | memory | nats a part | fitted again | tokens |")
    print("|---|---|---|---|---|---|---|")

    for size in map(int, options.sizes.split(",")):
        for learner in ("ours", "theirs"):
            learned = learn_in_a_process(options.corpora, learner, size)
            pieces = dict(learned["pieces"])
            found = judge(parts, strings, pieces)

            cost = f"{learned['seconds']:.1f} | {learned['megabytes']:,.0f} MB"
            quality = f"{found.nats:.4f} | {found.fitted_nats:.4f} | {found.tokens:,}"
            print(f"| {len(pieces):,} | {learner} | {cost} | {quality} |", flush=True)


def read_parts(corpora: list[str]) -> Words:
    """Count the words of JSONL files, and cut them into parts in lower case and without accents."""
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


def learn_in_a_process(corpora: list[str], learner: str, size: int) -> dict[str, Any]:
    """Run `learn_alone` in a new process, so that its memory can be measured, and return what it prints."""
    command = [sys.executable, __file__, *corpora, "--sizes", str(size), "--learner", learner]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def learn_alone(parts: Words, learner: str, size: int) -> None:
    """Train, and print as JSON the pieces with their scores, the CPU seconds, and the peak memory above the start's."""
    strings = strings_of(parts)

    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, to exclude reading
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
    """Return the pieces of tokenizers' trainer. It takes text without counts, so parts are repeated."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    trainer = trainers.UnigramTrainer(
        vocab_size=size + 1, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(repeated(strings, counts), trainer)

    vocab = json.loads(tokenizer.to_str())["model"]["vocab"]
    return [(piece, score) for piece, score in vocab if piece != "<unk>"]


def repeated(strings: list[str], counts: list[int]) -> Iterator[str]:
    """Yield each string as often as it occurs, in lines of at most LINE copies."""
    for string, count in zip(strings, counts, strict=True):
        for done in range(0, count, LINE):
            copies = min(LINE, count - done)
            yield " ".join([string] * copies)


class Judgment(NamedTuple):
    """The quality of a vocabulary.

    nats: mean log-likelihood per part of a word. tokens: in the best segmentations of the corpus.
    fitted_nats: the mean log-likelihood after fitting the probabilities again.
    """

    nats: float
    tokens: int
    fitted_nats: float


def judge(parts: Words, strings: list[str], pieces: dict[str, float]) -> Judgment:
    """Measure a vocabulary on the parts that it was trained on. pieces: the natural log of each one's probability."""
    spellings = list(pieces)
    probability_S = np.exp(np.array(list(pieces.values())))
    nats = log_likelihood(strings, parts, dict(zip(spellings, probability_S.tolist(), strict=True)))

    # <unk> is so unlikely that no best segmentation contains it.
    model = Tokenizer(models.Unigram([("<unk>", -100.0), *pieces.items()], 0)).model
    tokens_N = np.array([len(model.tokenize(string)) for string in strings])

    fitted_S = fit(parts, occurrences_of(strings, spellings), probability_S)
    fitted_nats = log_likelihood(strings, parts, dict(zip(spellings, fitted_S.tolist(), strict=True)))
    return Judgment(nats, int(tokens_N @ parts.counts_N), fitted_nats)


def fit(parts: Words, occurrences: list[Occurrences], probability_S: Floats) -> Floats:
    """Return the probabilities after FITTING_ROUNDS rounds of expectation maximization, as our trainer ends."""
    chunks = chunks_of(parts.lengths_N, parts.counts_N, occurrences)
    for _ in range(FITTING_ROUNDS):
        expected_S = np.zeros(len(probability_S))
        for chunk in chunks:
            chunk.add_expected(probability_S, expected_S)

        expected_S = np.maximum(expected_S, MIN_EXPECTED)
        probability_S = expected_S / expected_S.sum()
    return probability_S


def occurrences_of(strings: list[str], pieces: list[str]) -> list[Occurrences]:
    """Return where each piece occurs in the concatenated strings, by length of the piece, with a plain loop."""
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

    layers = []
    for layer in found:
        positions = np.array([place for place, _ in layer], np.int32)
        numbers = np.array([piece for _, piece in layer], np.int32)
        layers.append(Occurrences(positions, numbers))
    return layers


def log_likelihood(strings: list[str], parts: Words, probability: dict[str, float]) -> float:
    """Return the mean log-likelihood, in nats, over all parts in the corpus, with a plain loop over each string."""
    total = 0.0
    for string, count in zip(strings, parts.counts_N.tolist(), strict=True):
        # forward[end] is the total probability of all segmentations of the first `end` characters.
        forward = [1.0]
        for end in range(1, len(string) + 1):
            starts = range(max(0, end - MAX_PIECE), end)
            forward.append(sum(forward[start] * probability.get(string[start:end], 0.0) for start in starts))
        total += count * float(np.log(max(forward[-1], 1e-300)))
    return total / int(parts.counts_N.sum())


if __name__ == "__main__":
    main()
