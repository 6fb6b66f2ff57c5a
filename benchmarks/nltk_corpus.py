"""Writes English text and labeled sentences for quality.py, from a copy of the repository nltk/nltk_data.

    git clone --depth 1 https://github.com/nltk/nltk_data
    python benchmarks/nltk_corpus.py nltk_data OUT

Writes three JSONL files:

    OUT/corpus.jsonl      {"text"}: reviews, news, the Brown corpus, web text, Genesis and speeches, 23 MB
    OUT/polarity.jsonl    {"text", "label"}: 10,662 sentences of movie reviews (Pang and Lee, 2005), pos or neg
    OUT/tags.jsonl        {"tokens", "tags"}: 10,948 sentences of CoNLL-2000 with their part-of-speech tags
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipfile import ZipFile

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


def main() -> None:
    flags = argparse.ArgumentParser(description="Writes text and labeled sentences from a copy of nltk/nltk_data.")
    flags.add_argument("nltk_data", type=Path)
    flags.add_argument("output", type=Path)
    options = flags.parse_args()

    corpora = options.nltk_data / "packages" / "corpora"
    options.output.mkdir(parents=True, exist_ok=True)
    write(({"text": text} for text in documents(corpora)), options.output / "corpus.jsonl")
    write(polarity(corpora), options.output / "polarity.jsonl")
    write(tagged_sentences(corpora), options.output / "tags.jsonl")


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


def polarity(corpora: Path) -> Iterator[dict[str, object]]:
    """Yield the sentences of sentence_polarity with their labels."""
    for name, text in files_of(corpora, "sentence_polarity", r"rt-polarity\.(pos|neg)"):
        label = name.rsplit(".", 1)[-1]
        for line in text.splitlines():
            yield {"text": line.strip(), "label": label}


def tagged_sentences(corpora: Path) -> Iterator[dict[str, object]]:
    """Yield the sentences of CoNLL-2000; its lines are "word tag chunk", with an empty line between sentences."""
    for _, text in files_of(corpora, "conll2000", r"(train|test)\.txt"):
        for sentence in re.split(r"\n\s*\n", text.strip()):
            rows = [line.split() for line in sentence.splitlines()]
            yield {"tokens": [row[0] for row in rows], "tags": [row[1] for row in rows]}


def write(rows: Iterable[dict[str, object]], path: Path) -> None:
    """Write rows as JSONL."""
    with path.open("w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
