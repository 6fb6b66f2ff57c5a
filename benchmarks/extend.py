"""Measures `vocab --extend` on a domain's text: tokens saved, and encoding speed compared with added tokens.

    python benchmarks/extend.py BASE.jsonl DOMAIN.jsonl [--size 8000] [--add 500]

Both files have a document in the key "text" of each line. A vocabulary of each kind is trained on BASE and extended
with every second line of text of DOMAIN. The figures are for its other lines, each encoded as one sentence.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
from tokenizers import AddedToken, Tokenizer

from pipeline.pairs.encoding import Encoder
from pipeline.vocab.counted_words import UnigramRules, Words
from pipeline.vocab.extend import extend_vocabulary
from pipeline.vocab.tokenizer_files import vocabulary_files
from pipeline.vocab.train import VocabularyOptions, train_vocabulary
from pipeline.words.rules import library_cutter
from schemas.vocabulary import SENTENCEPIECE_SPACE, SPACE, TOKENIZER_FILE, Model, parse_vocabulary

MODELS: tuple[Model, ...] = ("wordpiece", "bytebpe", "unigram")


def main() -> None:
    flags = argparse.ArgumentParser(description="Extends vocabularies and counts tokens.")
    flags.add_argument("base")
    flags.add_argument("domain")
    flags.add_argument("--size", type=int, default=8000)
    flags.add_argument("--add", type=int, default=500)
    options = flags.parse_args()
    base = lines_of(options.base)
    domain = lines_of(options.domain)
    seen = domain[::2]
    held_out = pa.array(domain[1::2])

    print("| vocabulary | tokens before | after | saved | as pieces | as added tokens |\n|---|---|---|---|---|---|")
    for model in MODELS:
        rules = UnigramRules()
        trained = train_vocabulary(words_of(base, model), VocabularyOptions(model, options.size, 2, rules=rules))
        files = vocabulary_files(trained, model, rules)
        extended = extend_vocabulary(words_of(seen, model), files, options.add, 2)

        before, _ = encode(files[TOKENIZER_FILE], held_out)
        after, seconds = encode(extended.files[TOKENIZER_FILE], held_out)
        as_added = add_tokens(files[TOKENIZER_FILE], extended.files[TOKENIZER_FILE])
        _, added_seconds = encode(as_added, held_out)
        megabytes = held_out.nbytes / 1e6
        speeds = f"{megabytes / seconds:.1f} MB/s | {megabytes / added_seconds:.2f} MB/s"
        print(f"| {model} | {before:,} | {after:,} | {1 - after / before:.1%} | {speeds} |", flush=True)


def lines_of(path: str) -> list[str]:
    documents = [json.loads(line)["text"] for line in Path(path).read_text().splitlines()]
    return [" ".join(line.split()) for document in documents for line in document.splitlines() if line.strip()]


def words_of(lines: list[str], model: Model) -> Words:
    runs = Counter(run for line in lines for run in line.split(" "))
    cut = library_cutter(model, lowercase=model == "wordpiece")
    counts: Counter[str] = Counter()
    for run, count in runs.items():
        for word in cut(run):
            counts[word] += count
    return Words.of_counts(dict(sorted(counts.items())))


def encode(tokenizer_json: bytes, sentences: pa.Array) -> tuple[int, float]:
    """Return (tokens, CPU seconds) of our encoder on some sentences."""
    encoder = Encoder(tokenizer_json, parse_vocabulary(tokenizer_json, TOKENIZER_FILE).model)
    started = time.process_time()
    encoded = encoder.encode(sentences)
    return int(np.diff(encoded.offsets_N1).sum()), time.process_time() - started


def add_tokens(base_json: bytes, extended_json: bytes) -> bytes:
    """Return the base tokenizer with the words of the extension as added tokens, which match whole words only."""
    size = parse_vocabulary(base_json, TOKENIZER_FILE).size
    tokens = parse_vocabulary(extended_json, TOKENIZER_FILE).tokens[size:]
    tokenizer = Tokenizer.from_str(base_json.decode())
    spellings = [token.strip(SPACE + SENTENCEPIECE_SPACE) for token in tokens]
    tokenizer.add_tokens([AddedToken(spelling, single_word=True) for spelling in spellings if spelling])
    return tokenizer.to_str().encode()


if __name__ == "__main__":
    main()
