"""Prints what bags of words reach on the sentence tasks of nltk_corpus.py, to compare encoders with.

    python benchmarks/bag_of_words.py OUT/suite.toml

They are scikit-learn's: tf-idf of words and of pairs of words, and a logistic regression whose regularization is the
best one on the dev set.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""Inverses of the regularization's strength."""

WORD = r"\S+"

Examples = tuple[list[str], list[str]]  # texts and labels


def main() -> None:
    flags = argparse.ArgumentParser(description="Prints what bags of words reach on sentence tasks.")
    flags.add_argument("suite", type=Path)
    path = flags.parse_args().suite

    for name, task in tomllib.loads(path.read_text())["tasks"].items():
        if task["kind"] == "sentence":
            train, dev, test = (read(path.parent / task["data"][part]) for part in ("train", "dev", "test"))
            best = max((fitted(train, strength) for strength in STRENGTHS), key=lambda model: model.score(*dev))
            print(f"{name}: {len(train[0]):,} examples to train on, accuracy {best.score(*test):.3f}", flush=True)


def read(path: Path) -> Examples:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["text"] for row in rows], [row["label"] for row in rows]


def fitted(train: Examples, strength: float) -> Pipeline:
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=WORD)
    return make_pipeline(words, LogisticRegression(C=strength, max_iter=1000)).fit(*train)


if __name__ == "__main__":
    main()
