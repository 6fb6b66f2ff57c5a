"""What a folder is, by the names of its files: the one table for `inspect`, and for commands that want another kind.

Files of the trainer are read as JSON and TOML alone, so nothing of the trainer has to be installed. What is damaged is
left out of the answer: the command that uses it says what is wrong. Nothing that is slow to import is needed here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable
from functools import cached_property
from typing import Any

from schemas import storage

PLAN = "clozeline.toml"
RECIPE = "recipe.toml"
METRICS = "metrics.jsonl"
RESULTS = "results.json"
TASK = "task.toml"
INPUTS = "inputs.json"
CONFIG = "config.json"
STATE = "state.json"
MANIFEST = "manifest.json"
TOKENIZER_FILE = "tokenizer.json"
LOCK = "lock"

OF_RUNS = (METRICS, "checkpoints", LOCK)
BEFORE_RUNS = re.compile(r"\..*|lost\+found|.*\.(log|out|err)")
"""Names that schedulers, shells and file systems may put into a folder before a run begins. A run leaves them alone."""

PARTS = (MANIFEST, METRICS, RESULTS, CONFIG, STATE, "recipe_history.jsonl", "starts.jsonl")
"""Files that are no corpus, wherever they are."""

UNFINISHED = ("_unfinished-", "_lease-")
MAX_FILE = 64 << 20  # bytes of a file that is read whole

START = "a folder of `clozeline start`"
CHECKPOINT = "a checkpoint"
RUN = "the folder of a run"
SUITE = "the output of a suite"
TUNED = "the output of a fine-tuning"
MODEL = "a model in the Hugging Face format"
UNFINISHED_JOB = "the folder of a job that is not finished"
TOKENIZER = "a tokenizer"
EMPTY = "an empty folder"

RESULTS_OF_JOBS = {
    "text": "text shards",
    "counts": "word counts",
    "vocab": "a vocabulary",
    "pairs": "pair shards",
    "statistics": "statistics of pairs",
}
"""What the finished folders of jobs are, by the kind in their manifests."""


class Folder:
    """A folder, and what it holds. names: of files and folders. sizes: those of files in bytes, by name.

    A path that ends in `.` or `..` becomes absolute, because what is next names other folders from it.
    """

    def __init__(self, path: str):
        self.path = os.path.abspath(path) if path.rpartition("/")[-1] in (".", "..") else path
        self.sizes = storage.sizes(path)
        self.names = {*self.sizes, *storage.names(path)}

    def at(self, *names: str) -> str:
        return storage.join(self.path, *names)

    def read(self, name: str) -> Any:
        """Return the content of a JSON or TOML file; empty if there is none, or if it is damaged."""
        if self.sizes.get(name, MAX_FILE + 1) > MAX_FILE:
            return {}
        try:
            text = storage.read(self.at(name)).decode("utf-8-sig")
            content = tomllib.loads(text) if name.endswith(".toml") else json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return table(content)

    @cached_property
    def results(self) -> Any:
        return self.read(RESULTS)

    @property
    def quoted(self) -> str:
        return shlex.quote(self.path)


def table(value: object) -> dict[str, Any]:
    """Return a value that should be a table; an empty one if it is something else."""
    return value if isinstance(value, dict) else {}


KINDS: dict[str, Callable[[Folder], bool]] = {
    START: lambda it: PLAN in it.sizes,
    CHECKPOINT: lambda it: it.sizes.keys() >= {STATE, MANIFEST},
    RUN: lambda it: RECIPE in it.sizes and not it.names.isdisjoint(OF_RUNS),
    SUITE: lambda it: "scores" in it.results,
    TUNED: lambda it: "task" in it.results or it.sizes.keys() >= {TASK, INPUTS},
    MODEL: lambda it: CONFIG in it.sizes,
    UNFINISHED_JOB: lambda it: MANIFEST not in it.names and any(name.startswith(UNFINISHED) for name in it.names),
    TOKENIZER: lambda it: TOKENIZER_FILE in it.sizes and MANIFEST not in it.names,
    EMPTY: lambda it: not it.names,
}
"""The kinds of folders, in the order in which they are tried: a run may lie in a folder of `start`."""


def kind_of(folder: Folder) -> str:
    """Return what a folder is; empty if it is none of ours and no model."""
    found = next((kind for kind, is_one in KINDS.items() if is_one(folder)), None)
    return RESULTS_OF_JOBS.get(str(folder.read(MANIFEST).get("kind")), "") if found is None else found


def what_is(path: str) -> str:
    """Return what a folder is; empty for a file or a link to nothing, and if it is none of ours and no model."""
    return "" if is_file(path) or not storage.exists(path) else kind_of(Folder(path))


def is_file(path: str) -> bool:
    filesystem, name = storage.filesystem(path)
    with storage.storage_errors_of(path):
        return filesystem.isfile(name)


def is_pipeline_folder(path: str) -> bool:
    """Return whether `path` is a finished folder that a job of the pipeline wrote, even if its manifest is cut off."""
    manifest = storage.join(path, MANIFEST)
    if not storage.exists(manifest) or storage.exists(storage.join(path, STATE)):
        return False
    try:
        return "format_version" in json.loads(storage.read(manifest))  # others have files of that name, too
    except (ValueError, TypeError, RecursionError):
        return True
