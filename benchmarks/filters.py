"""Compares the rules of `shard --filters` with datatrove's filters, one by one: how many decisions are equal.

    python -m clozeline.demo.corpus out/filters.jsonl --megabytes 24
    pip install "datatrove==0.10.1" spacy loguru
    python benchmarks/filters.py out/filters.jsonl --documents 4000

Documents are cut into pieces of 2 to 40 blocks, because rules about short texts would otherwise never fail; every tenth
piece has a block repeated, every tenth lacks its punctuation. corpora.py compares their speed.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.filters.measures import Measured
from pipeline.filters.rules import RULES

OFF = {
    "gopher_quality": dict.fromkeys(
        (
            "min_doc_words", "max_doc_words", "min_avg_word_length", "max_avg_word_length", "max_symbol_word_ratio",
            "max_bullet_lines_ratio", "max_ellipsis_lines_ratio", "max_non_alpha_words_ratio", "min_stop_words",
        )
    ),
    "gopher_repetition": {
        **dict.fromkeys(("dup_line_frac", "dup_para_frac", "dup_line_char_frac", "dup_para_char_frac")),
        "top_n_grams": (),
        "dup_n_grams": (),
    },
    "fineweb_quality": {
        "line_punct_thr": 0,
        "short_line_thr": 1,
        "char_duplicates_ratio": 1,
        "new_line_ratio": float("inf"),
    },
}  # fmt: skip
"""Arguments that turn every rule of a datatrove filter off, by the module of the filter."""

SAME: dict[str, tuple[str, dict[str, Any]]] = {
    "min_words": ("gopher_quality", {"min_doc_words": 50}),
    "max_words": ("gopher_quality", {"max_doc_words": 100_000}),
    "min_mean_word_length": ("gopher_quality", {"min_avg_word_length": 3}),
    "max_mean_word_length": ("gopher_quality", {"max_avg_word_length": 10}),
    "max_hashes_per_word": ("gopher_quality", {"max_symbol_word_ratio": 0.1}),
    "max_bullet_lines": ("gopher_quality", {"max_bullet_lines_ratio": 0.9}),
    "max_ellipsis_lines": ("gopher_quality", {"max_ellipsis_lines_ratio": 0.3}),
    "min_alphabetic_words": ("gopher_quality", {"max_non_alpha_words_ratio": 0.8}),
    "min_stop_words": ("gopher_quality", {"min_stop_words": 2}),
    "max_duplicate_paragraphs": ("gopher_repetition", {"dup_para_frac": 0.3}),
    "max_duplicate_paragraph_characters": ("gopher_repetition", {"dup_para_char_frac": 0.2}),
    "max_duplicate_lines": ("gopher_repetition", {"dup_line_frac": 0.3}),
    "max_duplicate_line_characters": ("gopher_repetition", {"dup_line_char_frac": 0.2}),
    **{f"max_top_{n}_gram": ("gopher_repetition", {"top_n_grams": ((n, RULES[f"max_top_{n}_gram"].threshold),)})
       for n in (2, 3, 4)},
    **{f"max_duplicate_{n}_grams":
       ("gopher_repetition", {"dup_n_grams": ((n, RULES[f"max_duplicate_{n}_grams"].threshold),)})
       for n in range(5, 11)},
    "min_punctuated_lines": ("fineweb_quality", {"line_punct_thr": 0.12}),
    "max_short_lines": ("fineweb_quality", {"short_line_thr": 0.67}),
    "max_repeated_line_characters": ("fineweb_quality", {"char_duplicates_ratio": 0.01}),
    "max_line_ends_per_word": ("fineweb_quality", {"new_line_ratio": 0.3}),
}  # fmt: skip
"""The filter of datatrove with one rule alone, for each of our rules."""


def main() -> None:
    """Print a table of agreement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--documents", type=int, default=4000)
    arguments = parser.parse_args()
    texts = list(pieces(arguments.corpus, arguments.documents))
    print(f"{len(texts):,} documents, {sum(map(len, texts)):,} characters")

    words_of = share_words_of_datatrove()
    documents = [Document(text=text, id="") for text in texts]
    print(f"{'rule':36}{'ours drop':>10}{'theirs':>10}{'agree':>10}{'with the words of datatrove':>30}")
    for name, (module, arguments_of_rule) in SAME.items():
        rule = RULES[name]
        theirs = filter_of(module, arguments_of_rule)
        ours = [rule.fails(rule.measure(measured(text)), rule.threshold) for text in texts]
        dropped = [keeps(theirs, document) is False for document in documents]
        same_words = [rule.fails(rule.measure(measured(text, words_of)), rule.threshold) for text in texts]
        print(f"{name:36}{sum(ours):>10,}{sum(dropped):>10,}{agreement(ours, dropped):>10.2%}"
              f"{agreement(same_words, dropped):>30.2%}")  # fmt: skip


def agreement(ours: list[bool], theirs: list[bool]) -> float:
    """Return the share of equal decisions."""
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)


def pieces(corpus: Path, wanted: int) -> Iterator[str]:
    """Yield pieces of the corpus's documents, from the first to the last and again, cut elsewhere."""
    draw = random.Random(0)
    found = 0
    while found < wanted:
        for line in corpus.open(encoding="utf-8"):
            blocks = [block.strip() for block in json.loads(line)["text"].split("\n\n") if block.strip()]
            place = 0
            while place < len(blocks) and found < wanted:
                length = draw.randint(2, 40)
                yield spoiled(blocks[place : place + length], found)
                place += length
                found += 1


def spoiled(blocks: list[str], number: int) -> str:
    """Return blocks as a text. Every tenth has a block several times, every tenth no punctuation."""
    if number % 10 == 3:
        blocks = blocks + [blocks[0]] * (number // 10 % 20)
    text = "\n\n".join(blocks)
    return text.replace(".", "").replace(",", "") if number % 10 == 7 else text


@functools.lru_cache(None)
def measured(text: str, words_of: Callable[[str, str], list[str]] | None = None) -> Measured:
    """Return what our rules measure.

    words_of: splits a text of a language into words in place of our rule.
    """
    judged = Measured(blocks_of(text))
    if words_of is not None:
        judged.words = words_of(text, "eng")
    return judged


def blocks_of(text: str) -> list[list[str]]:
    """Return the lines of each block, not unwrapped, so that both sides see the same."""
    blocks = [list(filter(str.strip, block.split("\n"))) for block in text.split("\n\n")]
    return list(filter(None, blocks))


def filter_of(module: str, arguments: dict[str, Any]) -> Any:
    """Return a filter of datatrove with these rules alone."""
    found = importlib.import_module(f"datatrove.pipeline.filters.{module}_filter")
    made = {"gopher_quality": "GopherQualityFilter", "gopher_repetition": "GopherRepetitionFilter",
            "fineweb_quality": "FineWebQualityFilter"}[module]  # fmt: skip
    return getattr(found, made)(**(OFF[module] | arguments))


def keeps(theirs: Any, document: Any) -> bool:
    """Return whether a filter of datatrove keeps a document."""
    result = theirs.filter(document)
    return result if isinstance(result, bool) else result[0]


def share_words_of_datatrove() -> Callable[[str, str], list[str]]:
    """Let datatrove's filters split each text into words only once, and return how."""
    words = functools.lru_cache(None)(importlib.import_module("datatrove.utils.text").split_into_words)
    for module in OFF:
        importlib.import_module(f"datatrove.pipeline.filters.{module}_filter").split_into_words = words  # type: ignore[attr-defined]
    return words


if __name__ == "__main__":
    from datatrove.data import Document

    main()
