"""Writes English text and labeled sentences for quality.py, from a copy of the repository nltk/nltk_data.

    git clone --depth 1 https://github.com/nltk/nltk_data
    python benchmarks/nltk_corpus.py nltk_data OUT

Writes three JSONL files, and six tasks for `clozeline finetune` in folders of that name:

    OUT/corpus.jsonl      {"text"}: reviews, news, the Brown corpus, web text, Genesis and speeches, 23 MB
    OUT/polarity.jsonl    {"text", "label"}: 10,662 sentences of movie reviews (Pang and Lee, 2005), pos or neg
    OUT/tags.jsonl        {"tokens", "tags"}: 10,948 sentences of CoNLL-2000 with their part-of-speech tags

    OUT/polarity/         the task of these sentences, as in SST-2 but with 1,000 examples to train on
    OUT/subjectivity/     which of 10,000 sentences tell a movie's plot, and which judge it (Pang and Lee, 2004)
    OUT/products/         which of 3,700 sentences praise a product, and which blame it (Hu and Liu, 2004)
    OUT/pros_cons/        which of 41,000 remarks are in a list of pros, and which in a list of cons (Liu et al., 2005)
    OUT/questions/        which of 6 kinds of answers 5,900 questions ask for (Li and Roth, 2002)
    OUT/tags/             the task of these tags, with 500 sentences to train on
"""

from __future__ import annotations

import argparse
import html
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import tomli_w

DOCUMENT_CHARACTERS = 8000
"""Files that hold more than one document are cut at the first line end after this many characters."""

CUT_FILES = (
    ("abc", r"(rural|science)\.txt"),
    ("webtext", r"\w+\.txt"),
    ("genesis", r"english-\w+\.txt"),
)
"""Packages with such files, and patterns for the names of the English ones."""

WHOLE_FILES = (
    ("movie_reviews", r"cv\w+\.txt"),
    ("inaugural", r"\d{4}-\w+\.txt"),
    ("state_union", r"\d{4}-[\w-]+\.txt"),
)
"""Packages in which each file is one document, and patterns for the names of the files."""


TRAINING = {"epochs": 6, "lr": 5e-4, "batch": 16, "warmup_ratio": 0.1, "max_length": 128}
"""The [training] of all tasks. Models as small as those of quality.py need higher learning rates than BERT."""

SET_SIZES = {
    "polarity": (1000, 1000),
    "subjectivity": (1000, 1000),
    "products": (1000, 500),
    "pros_cons": (1000, 1000),
    "questions": (1000, 1000),
    "tags": (500, 500),
}
"""By task, the number of examples to train on and to choose the best epoch by. The rest is the test set."""

MAX_TEST_EXAMPLES = 10_000
"""Larger test sets are cut to this size, so that scoring does not take longer than training."""

Line = dict[str, Any]  # a JSON object


def main() -> None:
    flags = argparse.ArgumentParser(description="Writes text and labeled sentences from a copy of nltk/nltk_data.")
    flags.add_argument("nltk_data", type=Path)
    flags.add_argument("output", type=Path)
    options = flags.parse_args()

    corpora = options.nltk_data / "packages" / "corpora"
    options.output.mkdir(parents=True, exist_ok=True)
    write(({"text": text} for text in documents(corpora)), options.output / "corpus.jsonl")
    polar = list(labeled_sentences(corpora, "sentence_polarity", r"rt-polarity\.(pos|neg)"))
    subjective = list(labeled_sentences(corpora, "subjectivity", r"(plot|quote)\.tok\.gt9\.5000"))
    tagged = list(tagged_sentences(corpora))
    write(polar, options.output / "polarity.jsonl")
    write(tagged, options.output / "tags.jsonl")

    write_task("sentence", polar, options.output / "polarity")
    write_task("sentence", subjective, options.output / "subjectivity")
    write_task("sentence", product_opinions(corpora), options.output / "products")
    write_task("sentence", pros_and_cons(corpora), options.output / "pros_cons")
    write_task("sentence", questions(corpora), options.output / "questions")
    words = [{"words": line["tokens"], "tags": line["tags"]} for line in tagged]
    write_task("tags", words, options.output / "tags")


def documents(corpora: Path) -> Iterator[str]:
    """Yield the text of all documents, in a fixed order."""
    for _, text in files_of(corpora, "brown", r"c[a-r]\d\d"):
        yield brown_text(text)

    for package, pattern in WHOLE_FILES:
        for _, text in files_of(corpora, package, pattern):
            yield text

    for package, pattern in CUT_FILES:
        for _, text in files_of(corpora, package, pattern):
            yield from cut(text)


def files_of(corpora: Path, package: str, pattern: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for each file of a package whose whole name matches a pattern, sorted by path."""
    with ZipFile(corpora / f"{package}.zip") as archive:
        for path in sorted(archive.namelist()):
            name = path.rsplit("/", 1)[-1]
            if re.fullmatch(pattern, name):
                yield name, archive.read(path).decode("utf-8", errors="replace")


def brown_text(text: str) -> str:
    """Return a file of the Brown corpus without its tags: "The/at jury/nn" becomes "The jury"."""
    lines = []
    for line in text.splitlines():
        words = [word.rsplit("/", 1)[0] for word in line.split()]
        lines.append(" ".join('"' if word in ("``", "''") else word for word in words))
    return "\n".join(lines)


def cut(text: str) -> Iterator[str]:
    """Cut a long file into documents of about DOCUMENT_CHARACTERS characters."""
    lines: list[str] = []
    characters = 0
    for line in text.splitlines():
        lines.append(line)
        characters += len(line) + 1
        if characters >= DOCUMENT_CHARACTERS:
            yield "\n".join(lines)
            lines = []
            characters = 0
    yield "\n".join(lines)


def labeled_sentences(corpora: Path, package: str, pattern: str) -> Iterator[Line]:
    """Yield the sentences of a package with one file for each label, a sentence in each line.

    pattern: of the files' names. Its group is the label.
    """
    for name, text in files_of(corpora, package, pattern):
        label = re.fullmatch(pattern, name)
        assert label is not None
        for line in text.splitlines():
            yield {"text": line.strip(), "label": label[1]}


def product_opinions(corpora: Path) -> list[Line]:
    """Return the sentences of product reviews that only praise or only blame.

    A line is "battery life[+2], weight[-1]##" and a sentence: opinions and their strengths, of which there may be none.
    """
    lines = []
    for package in ("product_reviews_1", "product_reviews_2"):
        for _, text in files_of(corpora, package, r"(?!README).+\.txt"):
            lines += text.splitlines()

    sentences = []
    for line in lines:
        opinions, _, sentence = line.partition("##")
        signs = set(re.findall(r"\[([+-])\d\]", opinions))
        is_clear = len(signs) == 1
        if is_clear and sentence:
            label = "pos" if "+" in signs else "neg"
            sentences.append({"text": sentence.strip(), "label": label})

    return unambiguous(sentences)


def pros_and_cons(corpora: Path) -> list[Line]:
    """Return the remarks on products, one in each line, as <Pros>small and light</Pros>."""
    lines = []
    for _, text in files_of(corpora, "pros_cons", r"Integrated(Pros|Cons)\.txt"):
        for label, remark in re.findall(r"<(Pros|Cons)>(.*)</\1>", text):
            lines.append({"text": html.unescape(remark).strip(), "label": label.lower()})
    return unambiguous(lines)


def questions(corpora: Path) -> list[Line]:
    """Return the questions, one in each line, as "HUM:ind Who was Galileo ?". HUM is the kind of answer."""
    lines = []
    for _, text in files_of(corpora, "qc", r"(train|test)\.txt"):
        for line in text.splitlines():
            kind, question = line.split(maxsplit=1)
            lines.append({"text": question, "label": kind.partition(":")[0]})
    return unambiguous(lines)


def unambiguous(lines: list[Line]) -> list[Line]:
    """Return each text once, so that few test examples are also trained on, and none with another label.

    Texts count as equal only if they are the same to the letter. Polarity and subjectivity do without this, because no
    sentence is in two of their sets.
    """
    labels: dict[str, set[str]] = {}
    for line in lines:
        labels.setdefault(line["text"], set()).add(line["label"])

    kept = []
    for text, labels_of_text in labels.items():
        if text and len(labels_of_text) == 1:
            (label,) = labels_of_text
            kept.append({"text": text, "label": label})
    return kept


def tagged_sentences(corpora: Path) -> Iterator[Line]:
    """Yield the sentences of CoNLL-2000; its lines are "word tag chunk", with an empty line between sentences."""
    for _, text in files_of(corpora, "conll2000", r"(train|test)\.txt"):
        for sentence in re.split(r"\n\s*\n", text.strip()):
            rows = [line.split() for line in sentence.splitlines()]
            yield {"tokens": [row[0] for row in rows], "tags": [row[1] for row in rows]}


def write_task(kind: str, lines: list[Line], folder: Path) -> None:
    """Write a task file, and the three sets of a task. Their examples are drawn with a fixed seed."""
    lines = list(lines)
    random.Random(0).shuffle(lines)
    train, dev = SET_SIZES[folder.name]
    test = lines[train + dev : train + dev + MAX_TEST_EXAMPLES]
    sets = {"train": lines[:train], "dev": lines[train : train + dev], "test": test}

    folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in sets.items():
        write(chosen, folder / f"{name}.jsonl")

    data: dict[str, Any] = {name: f"{name}.jsonl" for name in sets}
    if kind == "tags":
        # The sentences to train on lack some rare tags.
        data["labels"] = sorted({tag for line in lines for tag in line["tags"]})
    content = {"name": folder.name, "kind": kind, "data": data, "metrics": ["accuracy"], "training": TRAINING}
    (folder / "task.toml").write_text(tomli_w.dumps(content))


def write(rows: Iterable[Line], path: Path) -> None:
    """Write rows as JSONL."""
    with path.open("w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
