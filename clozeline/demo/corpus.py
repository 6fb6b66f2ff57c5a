"""Writes Python's own documentation as a JSONL corpus: real English that every machine already has.

The sources are pydoc's topics, the docstrings of built-in types, and the docstrings of modules in the standard library
and installed packages. Modules are parsed, not imported. One module is one document.

    python -m clozeline.demo.corpus OUTPUT.jsonl [--megabytes 8]
"""

from __future__ import annotations

import argparse
import ast
import builtins
import hashlib
import inspect
import json
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from schemas import progress
from schemas.terminal import counted

SKIPPED_FOLDERS = {"test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "__pycache__", "_vendor"}

MIN_CHARACTERS = 400
"""Shorter documents are left out, because they are too short for a pair of segments."""

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def documents() -> Iterator[dict[str, str]]:
    """Yield every document as {"source", "text"}, in an order that depends only on what is installed."""
    yield from _from_pydoc()
    yield from _from_builtins()

    paths = sysconfig.get_paths()
    for source, root in (("standard library", paths["stdlib"]), ("packages", paths["purelib"])):
        for path in modules_under(Path(root)):
            text = docstrings(path)
            if len(text) >= MIN_CHARACTERS:
                yield {"source": source, "text": text}


def _from_pydoc() -> Iterator[dict[str, str]]:
    from pydoc_data.topics import topics

    for _, text in sorted(topics.items()):
        yield {"source": "pydoc", "text": text}


def _from_builtins() -> Iterator[dict[str, str]]:
    for name, value in sorted(vars(builtins).items()):
        if not isinstance(value, type):
            continue

        members = [member for _, member in sorted(vars(value).items())]
        parts = [inspect.getdoc(value), *(inspect.getdoc(member) for member in members)]
        text = "\n\n".join(part for part in parts if part)
        if len(text) >= MIN_CHARACTERS:
            yield {"source": "builtins", "text": f"{name}\n\n{text}"}


def modules_under(root: Path) -> Iterator[Path]:
    """Yield the Python sources below a folder, without tests and vendored copies.

    They are sorted by a hash of their paths, which mixes the packages: a corpus that is cut off early should not
    consist only of packages whose names begin with A.
    """
    paths = {str(path.relative_to(root)): path for path in root.rglob("*.py")}
    for name in sorted(paths, key=lambda name: hashlib.blake2b(name.encode()).digest()):
        if not SKIPPED_FOLDERS.intersection(Path(name).parts):
            yield paths[name]


def docstrings(path: Path) -> str:
    """Return the docstrings of a module, its classes and functions; an empty string if it cannot be read or parsed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sources may contain invalid escapes
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            return ""

    texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    return "\n\n".join(text for text in texts if text)


def write_documents(output: Path, max_characters: int) -> tuple[int, int]:
    """Write documents until their texts have `max_characters`. Returns the numbers of documents and of characters."""
    count = 0
    characters = 0
    output.parent.mkdir(parents=True, exist_ok=True)

    with output.open("w", encoding="utf-8") as file, progress.Bar("corpus", max_characters, "B") as bar:
        for document in documents():
            file.write(json.dumps(document) + "\n")
            count += 1
            characters += len(document["text"])
            bar.advance(len(document["text"]))
            if characters >= max_characters:
                break
    return count, characters


def main() -> None:
    description = __doc__.split("\n")[0] if __doc__ else None
    flags = argparse.ArgumentParser(description=description)
    flags.add_argument("output", type=Path)
    flags.add_argument("--megabytes", type=float, default=8.0, help="amount of text after which to stop")
    options = flags.parse_args()

    count, characters = write_documents(options.output, int(options.megabytes * 1e6))
    print(f"{options.output}: {counted(count, 'document')}, {counted(characters, 'character')}")


if __name__ == "__main__":
    main()
