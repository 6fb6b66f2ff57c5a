"""A small suite of three tasks and minimal pairs from the tests' own sentences, and encoders to run it on."""

from __future__ import annotations

import signal
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
import transformers
from transformers import AutoConfig

from tests.conftest import NOUNS, VERBS
from tests.trainer.finetune.conftest import write_encoder
from tests.trainer.finetune.tasks import sentences, tag_lines, words_of, write_lines
from trainer.distributed.stop import listened

Lines = list[dict[str, Any]]

TRAINING = {"epochs": 2, "batch": 8, "lr": 1e-3, "max_length": 32}


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """A command in this process leaves its signals ignored, and processes that later tests start would inherit that."""
    before = {number: signal.getsignal(number) for number in listened()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def masked_lm(vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Folders of small BERTs with a masked-LM head, one for each seed of their weights."""
    shape = tmp_path_factory.mktemp("shape")
    write_encoder("bert", vocab, shape)
    made: dict[int, Path] = {}

    def folder_of(seed: int) -> Path:
        if seed not in made:
            folder = tmp_path_factory.mktemp("encoder") / f"bert{seed}"
            torch.manual_seed(seed)
            transformers.AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(shape)).save_pretrained(folder)
            transformers.AutoTokenizer.from_pretrained(shape).save_pretrained(folder)
            made[seed] = folder
        return made[seed]

    return folder_of


def subject_lines(count: int, seed: int) -> Lines:
    """Is the subject one of the first nouns?"""
    return [{"text": words_of(parts), "label": str(NOUNS.index(parts[0]) < 7)} for parts in sentences(count, seed)]


def verb_lines(count: int, seed: int) -> Lines:
    """Is the verb one of the first ones?"""
    return [{"text": words_of(parts), "label": str(VERBS.index(parts[1]) < 6)} for parts in sentences(count, seed)]


def minimal_pairs(count: int, seed: int) -> Lines:
    """Sentences, and the same ones with two words in the wrong order."""
    return [
        {
            "sentence_good": f"The {subject} {verb} the {thing}.",
            "sentence_bad": f"The {verb} {subject} the {thing}.",
            "UID": f"order_{number % 2}",
            "linguistics_term": "word order",
        }
        for number, (subject, verb, thing, _) in enumerate(sentences(count, seed))
    ]


def write_task(folder: Path, name: str, kind: str, lines: Callable[[int, int], Lines], **training: Any) -> None:
    """Write a task's files and its task file."""
    write_lines(folder / name / "train.jsonl", lines(40, 1))
    write_lines(folder / name / "dev.jsonl", lines(24, 2))
    content = {
        "name": name,
        "kind": kind,
        "source": f"https://example.org/{name}",
        "data": {"train": f"{name}/train.jsonl", "dev": f"{name}/dev.jsonl"},
        "training": TRAINING | training,
    }
    (folder / f"{name}.toml").write_text(tomli_w.dumps(content))


@pytest.fixture
def suite_file(tmp_path: Path) -> Path:
    """A suite with its files. "verbs" has no task file, and starts from the encoder of "subjects"."""
    folder = tmp_path / "small"
    folder.mkdir()
    write_task(folder, "subjects", "sentence", subject_lines)
    write_task(folder, "verbs", "sentence", verb_lines)
    write_task(folder, "tags", "tags", tag_lines)
    write_lines(folder / "pairs/order.jsonl", minimal_pairs(12, 3))
    write_lines(folder / "pairs/swaps.jsonl", minimal_pairs(6, 4))

    verbs = tomllib.loads((folder / "verbs.toml").read_text())
    (folder / "verbs.toml").unlink()
    content = {
        "name": "small",
        "tasks": {
            "subjects": {"file": "subjects.toml"},
            "tags": {"file": "tags.toml"},
            "verbs": {"starts_from": "subjects"} | verbs,
        },
        "minimal_pairs": {"order": {"files": "pairs/*.jsonl", "source": "https://example.org/pairs"}},
    }
    path = folder / "small.toml"
    path.write_text(tomli_w.dumps(content))
    return path


def changed(path: Path, **changes: object) -> Path:
    """A suite file with other values of some keys."""
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | changes))
    return path
