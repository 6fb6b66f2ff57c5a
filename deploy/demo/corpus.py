"""Real English that every machine already has: the documentation that an installed Python carries, as JSONL.

pydoc's topics, the docstrings of built-in types, and those of the standard library's and the installed packages'
modules, read from their sources without importing them. One module is one document.

    python deploy/demo/corpus.py OUTPUT.jsonl [--megabytes 8]
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

from tqdm import tqdm

SKIPPED = {"test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "__pycache__", "_vendor"}
SHORTEST = 400  # characters; below, a module says too little to make a pair of segments


def documents() -> Iterator[dict[str, str]]:
    """{"source", "text"} of every document, in an order that depends on what is installed alone.

    Packages are mixed by a hash of each module's path, so that stopping early does not mean the letter A.
    """
    yield from _from_pydoc()
    yield from _from_builtins()
    paths = sysconfig.get_paths()
    for source, root in (("standard library", paths["stdlib"]), ("packages", paths["purelib"])):
        for path in modules_under(Path(root)):
            text = docstrings(path)
            if len(text) >= SHORTEST:
                yield {"source": source, "text": text}


def _from_pydoc() -> Iterator[dict[str, str]]:
    from pydoc_data.topics import topics

    for _, text in sorted(topics.items()):
        yield {"source": "pydoc", "text": text}


def _from_builtins() -> Iterator[dict[str, str]]:
    for name, thing in sorted(vars(builtins).items()):
        if isinstance(thing, type):
            parts = [inspect.getdoc(thing), *(inspect.getdoc(member) for _, member in sorted(vars(thing).items()))]
            text = "\n\n".join(part for part in parts if part)
            if len(text) >= SHORTEST:
                yield {"source": "builtins", "text": f"{name}\n\n{text}"}


def modules_under(root: Path) -> Iterator[Path]:
    """Python sources below a folder, without tests and vendored copies, in the order of a hash of their paths."""
    inside = {str(path.relative_to(root)): path for path in root.rglob("*.py")}
    for name in sorted(inside, key=lambda name: hashlib.blake2b(name.encode()).digest()):
        if not SKIPPED.intersection(Path(name).parts):
            yield inside[name]


def docstrings(path: Path) -> str:
    """The docstrings of a module, its classes and its functions, in the order of the source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sources warn of their own escapes
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return ""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)]
    return "\n\n".join(text for text in found if text)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    flags.add_argument("output", type=Path)
    flags.add_argument("--megabytes", type=float, default=8.0, help="stop after so much text")
    options = flags.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    wanted, count, characters = int(options.megabytes * 1e6), 0, 0
    with (
        options.output.open("w", encoding="utf-8") as file,
        tqdm(total=wanted, unit="B", unit_scale=True, disable=None) as bar,
    ):
        for document in documents():
            file.write(json.dumps(document) + "\n")
            count += 1
            bar.update(len(document["text"]))
            characters += len(document["text"])
            if characters >= wanted:
                break
        print(f"{options.output}: {count:,} documents, {characters:,} characters")


if __name__ == "__main__":
    main()
