"""What `inspect` says of what is no finished result of the pipeline: a folder of another kind, a file, or a corpus."""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Iterator

from pipeline.folder_lines import LABEL_WIDTH, LINES, labeled, next_is, results_inside, tokenizer_lines
from schemas import storage
from schemas.errors import DataError, UsageError
from schemas.folder_kinds import CONFIG, EMPTY, METRICS, MODEL, RESULTS, STATE, Folder, is_file, kind_of, what_is
from schemas.manifest import NAME
from schemas.vocabulary import TOKENIZER_FILE

EXCERPT = 200  # characters of a document


def explain(path: str, rows: int) -> Iterator[str]:
    """Yield lines on a folder or a file that is no finished result of the pipeline.

    Raises DataError if it does not exist, or if it is text that cannot be read.
    """
    if not storage.exists(path):
        raise DataError(f"{path} does not exist. Give a folder or a file that a command wrote, a model or a corpus.")
    if storage.is_local(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise DataError(f"{path} is neither a file nor a folder, but a device or a pipe. Give a file or a folder.")

    if is_file(path):
        yield from _of_file(path, rows)
        return
    folder = Folder(path)
    kind = kind_of(folder)
    if kind in LINES:
        yield f"{path}: {kind}"
        yield from LINES[kind](folder)
        return

    inside = list(results_inside(folder))
    if inside:
        yield f"{path}: a folder with results. `clozeline inspect` says more of each"
        yield from inside
    else:
        yield from _of_text(path, rows)


SETTINGS = {
    "corpus": ("corpora for --inputs", "clozeline shard --inputs {path} --output DIR"),
    "shard": (
        "the plan of `clozeline start`",
        "the command in its first lines, which `clozeline inspect` of its folder prints, too",
    ),
    "model": ("a recipe", "clozeline train --config {path}"),
    "tasks": ("a suite", "clozeline suite FOLDER --suite {path} --output DIR"),
    "minimal_pairs": ("a suite", "clozeline suite FOLDER --suite {path} --output DIR"),
    "kind": ("a task", "clozeline finetune FOLDER --task {path} --output DIR"),
    "rules": ("rules for --filters", "clozeline shard --input FILES --filters {path} --output DIR"),
    "sets": ("rules for --filters", "clozeline shard --input FILES --filters {path} --output DIR"),
}
"""What a TOML file is that has this key, and what takes it."""


PARTS = (NAME, METRICS, RESULTS, CONFIG, STATE, "recipe_history.jsonl", "starts.jsonl")
"""Files that are no corpus, wherever they are."""

PAGES = ("report.html", "card.html")
LEDGER = "ledger.parquet"  # of pipeline/ledger.py, which takes long to load


def _of_file(path: str, rows: int) -> Iterator[str]:
    folder, _, name = path.rpartition("/")
    if name == TOKENIZER_FILE:
        yield f"{path}: a tokenizer"
        yield from tokenizer_lines(path)
        yield from next_is(f"clozeline inspect {shlex.quote(folder or '.')}")
    elif name.endswith(".toml"):
        yield from _of_settings(path)
    elif name in PAGES or (name.endswith(".html") and what_is(folder or ".") not in ("", EMPTY)):
        yield from (f"{path}: a page", *next_is("open it with a browser"))
    elif name == LEDGER and storage.exists(storage.join(folder or ".", NAME)):
        yield f"{path}: the ledger of {what_is(folder or '.')}, a table of what was left out or cut, and why"
        yield labeled("columns", '"File formats" in the documentation explains them')
        yield from next_is(f"clozeline inspect {shlex.quote(folder or '.')}")
    elif name in PARTS or _is_json_of_ours(folder or ".", name):
        yield f"{path}: a part of {what_is(folder or '.') or 'its folder'}"
        yield from next_is(f"clozeline inspect {shlex.quote(folder or '.')}")
    else:
        yield from _of_text(path, rows)


def _is_json_of_ours(folder: str, name: str) -> bool:
    """Return whether a JSON file is of a folder that our commands write. A corpus may lie in that of a model."""
    is_setting = name.endswith("config.json")
    return name.endswith(".json") and what_is(folder) not in ("", EMPTY, *([] if is_setting else [MODEL]))


def _of_settings(path: str) -> Iterator[str]:
    try:
        content = tomllib.loads(storage.read(path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not TOML: {error}.") from error
    what, command = next((SETTINGS[key] for key in SETTINGS if key in content), ("a TOML file, none of ours", ""))
    yield f"{path}: {what}"
    if what == SETTINGS["corpus"][0]:
        from pipeline.readers.corpora import read_corpora

        for corpus in read_corpora(path):
            yield labeled(corpus.name[:LABEL_WIDTH], f"{', '.join(corpus.patterns)}  {corpus.license}".rstrip())
    else:
        yield labeled("sections", ", ".join(key for key in content if isinstance(content[key], dict | list)) or "none")
    if command:
        yield from next_is(command.format(path=shlex.quote(path)))


def _of_text(path: str, rows: int) -> Iterator[str]:
    """Yield what a corpus holds, as `clozeline start` sees it, and the beginnings of some documents."""
    from pipeline.look import documents_of, look_at, look_lines, unreadable_in  # not needed for folders of other kinds

    try:
        look = look_at(path)
    except UsageError as error:  # nothing is wrong: it is no text
        raise DataError(str(error)) from error
    yield from look_lines(path, look)
    for document in documents_of(look, rows):
        text = " ".join(document.text[: 2 * EXCERPT].split())[:EXCERPT]
        yield labeled("document", f"{text} ..." if len(document.text) > EXCERPT else text)

    if len(look.faults) > len(look.unreadable):
        yield from next_is("mend the files, or leave them out: `clozeline shard` would end with what is said above")
        return
    flags = f" --exclude {shlex.join(unreadable_in(path, look))}" if look.unreadable else ""
    flags += "" if look.language in (None, "en") else f" --language {look.language}"
    has_archives = any(one.reader.members is not None for one in look.ranges)  # whose members may have any encoding
    flags += " --encoding auto" if look.encodings or has_archives else ""
    flags += "" if look.text_key == "text" else f" --text_key {shlex.quote(look.text_key)}"
    flags += "" if look.text_layout == "blank_line" else f" --text_layout {look.text_layout}"
    yield from next_is(
        f"clozeline start {shlex.quote(path)}    all steps to an encoder",
        f"clozeline shard --input {shlex.quote(path)} --output DIR{flags}    or step by step, this one first",
    )
