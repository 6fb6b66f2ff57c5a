"""Writes English text and a suite of labeled tasks for quality.py, from copies of public repositories.

    git clone --depth 1 https://github.com/nltk/nltk_data
    git clone --depth 1 https://github.com/leondz/emerging_entities_17
    git clone --depth 1 https://github.com/wasiahmad/paraphrase_identification
    python benchmarks/nltk_corpus.py nltk_data OUT --entities emerging_entities_17 \
        --paraphrases paraphrase_identification/dataset/msr-paraphrase-corpus

Writes OUT/corpus.jsonl, {"text"} of reviews, news, the Brown corpus, web text, Genesis and speeches, 23 MB, and
OUT/reviews.jsonl, the 2,000 movie reviews of these, 8 MB. Writes OUT/suite.toml, a suite for `clozeline suite`, none of
whose sentences is from a document of the corpus.

    polarity        10,662 sentences of movie reviews, pos or neg (Pang and Lee, 2005), 1,000 of them to train on
    subjectivity    which of 10,000 sentences tell a movie's plot, and which judge it (Pang and Lee, 2004)
    questions       which of 6 kinds of answers 5,900 questions ask for (Li and Roth, 2002)
    parts_of_speech of the words of 10,948 sentences of CoNLL-2000, 500 to train on
    entities        names of six kinds in what users of the web wrote: WNUT-17 (Derczynski et al., 2017), if given
    paraphrases     do two sentences of news say the same? MSRP (Dolan and Brockett, 2005), if given
"""

from __future__ import annotations

import argparse
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

REVIEWS = ("movie_reviews", r"cv\w+\.txt")
WHOLE_FILES = (
    REVIEWS,
    ("inaugural", r"\d{4}-\w+\.txt"),
    ("state_union", r"\d{4}-[\w-]+\.txt"),
)
"""Packages in which each file is one document, and patterns for the names of the files."""


TRAINING = {"epochs": 6, "lr": 1e-3, "batch": 16, "warmup_ratio": 0.1, "max_length": 128}
"""The [training] of all tasks. Models as small as those of quality.py need higher learning rates than BERT."""

SET_SIZES = {
    "polarity": (1000, 1000),
    "subjectivity": (1000, 1000),
    "questions": (1000, 1000),
    "parts_of_speech": (500, 500),
}
"""By task, the number of examples to train on and to choose the best epoch by. The rest is the test set."""

MAX_TEST_EXAMPLES = 10_000
"""Larger test sets are cut to this size, so that scoring does not take longer than training."""

Line = dict[str, Any]  # a JSON object


def main() -> None:
    flags = argparse.ArgumentParser(description="Writes text and labeled sentences from a copy of nltk/nltk_data.")
    flags.add_argument("nltk_data", type=Path)
    flags.add_argument("output", type=Path)
    flags.add_argument("--entities", type=Path, metavar="FOLDER", help="a copy of leondz/emerging_entities_17")
    flags.add_argument("--paraphrases", type=Path, metavar="FOLDER", help="the folder of msr_paraphrase_train.txt")
    options = flags.parse_args()

    corpora = options.nltk_data / "packages" / "corpora"
    out = options.output
    out.mkdir(parents=True, exist_ok=True)
    write(({"text": text} for text in documents(corpora)), out / "corpus.jsonl")
    reviews = files_of(corpora, *REVIEWS)
    write(({"text": text} for _, text in reviews), out / "reviews.jsonl")

    polar = labeled_sentences(corpora, "sentence_polarity", r"rt-polarity\.(pos|neg)")
    subjective = labeled_sentences(corpora, "subjectivity", r"(plot|quote)\.tok\.gt9\.5000")
    tasks = {
        "polarity": drawn_task("sentence", polar, out / "polarity"),
        "subjectivity": drawn_task("sentence", subjective, out / "subjectivity"),
        "questions": drawn_task("sentence", questions(corpora), out / "questions"),
        "parts_of_speech": drawn_task("tags", tagged_sentences(corpora), out / "parts_of_speech"),
    }
    if options.entities:
        tasks["entities"] = entity_task(options.entities.resolve())
    if options.paraphrases:
        tasks["paraphrases"] = paraphrase_task(options.paraphrases.resolve(), out / "paraphrases")

    write_suite(out / "suite.toml", tasks)


def write_suite(path: Path, tasks: dict[str, dict[str, Any]]) -> None:
    """Write a suite of these tasks, which are scored on their test sets."""
    defaults = {"sets": ["test"], "training": TRAINING}
    path.write_text(tomli_w.dumps({"name": "labeled sentences", "defaults": defaults, "tasks": tasks}))


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
            yield {"words": [row[0] for row in rows], "tags": [row[1] for row in rows]}


def drawn_task(kind: str, lines: Iterable[Line], folder: Path) -> dict[str, Any]:
    """Write three sets of examples that are drawn with a fixed seed, and return their task."""
    lines = list(lines)
    random.Random(0).shuffle(lines)
    train, dev = SET_SIZES[folder.name]
    test = lines[train + dev : train + dev + MAX_TEST_EXAMPLES]
    sets = {"train": lines[:train], "dev": lines[train : train + dev], "test": test}

    folder.mkdir(parents=True, exist_ok=True)
    data: dict[str, Any] = {}
    for name, chosen in sets.items():
        write(chosen, folder / f"{name}.jsonl")
        data[name] = f"{folder.name}/{name}.jsonl"

    # The examples to train on lack some rare labels.
    data["labels"] = sorted(
        {label for line in lines for label in (line["tags"] if kind == "tags" else [line["label"]])}
    )
    return {"kind": kind, "data": data, "metrics": ["accuracy"]}


def entity_task(folder: Path) -> dict[str, Any]:
    files = {"train": "wnut17train.conll", "dev": "emerging.dev.conll", "test": "emerging.test.annotated"}
    data = {name: str(folder / file) for name, file in files.items()}
    return {"kind": "tags", "data": data | {"format": "conll"}, "metrics": ["chunk_f1"]}


def paraphrase_task(source: Path, folder: Path) -> dict[str, Any]:
    """Write the corpus's own test set, and its training set without every tenth pair, which is the dev set."""
    sets: dict[str, list[Line]] = {"train": [], "dev": [], "test": []}
    for file in ("train", "test"):
        lines = (source / f"msr_paraphrase_{file}.txt").read_text(encoding="utf-8-sig").splitlines()
        for number, line in enumerate(lines[1:]):
            label, _, _, first, second = line.split("\t")
            chosen = "dev" if file == "train" and number % 10 == 9 else file
            sets[chosen].append({"text": first, "text_pair": second, "label": label})

    folder.mkdir(parents=True, exist_ok=True)
    data = {name: f"{folder.name}/{name}.jsonl" for name in sets}
    for name, pairs in sets.items():
        write(pairs, folder / f"{name}.jsonl")
    return {"kind": "pair", "data": data, "metrics": ["accuracy"]}


def write(rows: Iterable[Line], path: Path) -> None:
    """Write rows as JSONL."""
    with path.open("w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
