"""Small tasks of every kind from the tests' own sentences: which noun, how much two share, what follows, who sees."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomli_w

from tests.conftest import NOUNS, PLACES, VERBS
from trainer.finetune.examples import TaskData
from trainer.finetune.files.read import read_task_data
from trainer.finetune.task import Task

ANIMALS = NOUNS[: len(NOUNS) // 2]


def sentences(count: int, seed: int) -> list[tuple[str, str, str, str]]:
    """Subject, verb, object and place of sentences."""
    rng = random.Random(seed)
    return [(rng.choice(NOUNS), rng.choice(VERBS), rng.choice(NOUNS), rng.choice(PLACES)) for _ in range(count)]


def words_of(parts: tuple[str, str, str, str]) -> str:
    subject, verb, thing, place = parts
    return f"The {subject} {verb} the {thing} {place}."


def sentence_lines(count: int, seed: int) -> list[dict[str, Any]]:
    return [{"text": words_of(p), "label": "first" if p[0] in ANIMALS else "second"} for p in sentences(count, seed)]


def pair_lines(count: int, seed: int) -> list[dict[str, Any]]:
    """How many of the four parts two sentences share, by fours."""
    first, second = sentences(count, seed), sentences(count, seed + 1000)
    return [
        {
            "text": words_of(a),
            "text_pair": words_of(b),
            "label": sum(x == y for x, y in zip(a, b, strict=True)) / 4,
        }
        for a, b in zip(first, second, strict=True)
    ]


def choice_lines(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    lines = []
    for subject, verb, thing, place in sentences(count, seed):
        choices = [f"the {other} {place}." for other in rng.sample(VERBS, 3)]
        right = rng.randrange(3)
        choices[right] = f"the {thing} {place}."
        lines.append({"context": f"The {subject} {verb}", "choices": choices, "label": right})
    return lines


def tag_lines(count: int, seed: int) -> list[dict[str, Any]]:
    lines = []
    for parts in sentences(count, seed):
        words = words_of(parts).split()
        tags = ["O", "B-WHO", "O", "O", "B-WHAT", *["O"] * (len(words) - 5)]
        lines.append({"words": words, "tags": tags})
    return lines


def squad(count: int, seed: int, unanswerable: bool = False) -> dict[str, Any]:
    paragraphs = []
    for number, parts in enumerate(sentences(count, seed)):
        context = words_of(parts)
        is_impossible = unanswerable and number % 4 == 3
        answers = [] if is_impossible else [{"text": parts[2], "answer_start": context.rindex(parts[2])}]
        question = "Where is nobody?" if is_impossible else f"What is it that the {parts[0]} {parts[1]}?"
        entry = {"id": f"q{number}", "question": question, "answers": answers, "is_impossible": is_impossible}
        paragraphs.append({"context": context, "qas": [entry]})
    return {"version": "2.0", "data": [{"title": "Sentences", "paragraphs": paragraphs}]}


LINES = {"sentence": sentence_lines, "pair": pair_lines, "choice": choice_lines, "tags": tag_lines}


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_task(folder: Path, kind: str, train: int = 48, dev: int = 24, **training: Any) -> Path:
    """Write the files of a task of a kind, and its task file. Returns the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    data: dict[str, Any] = {}
    for name, count, seed in (("train", train, 1), ("dev", dev, 2), ("test", dev, 3)):
        file = folder / (f"{name}.json" if kind == "span" else f"{name}.jsonl")
        if kind == "span":
            file.write_text(json.dumps(squad(count, seed, unanswerable=True)))
        else:
            write_lines(file, LINES[kind](count, seed))
        data[name] = file.name

    if kind == "pair":
        data["labels"] = "number"
    content = {"name": kind, "kind": kind, "data": data, "training": {"epochs": 2, "batch": 8, "lr": 1e-3, **training}}
    path = folder / "task.toml"
    path.write_text(tomli_w.dumps(content))
    return path


def data_of(folder: Path | str, kind: str, file: str, **data: Any) -> TaskData:
    """Read a task whose training and dev set are the same file, unless `data`, its [data], names others."""
    content = {"name": "small", "kind": kind, "data": {"train": file, "dev": file} | data}
    return read_task_data(Task.model_validate(content), str(folder))


def results_of(output: Path) -> dict[str, Any]:
    """What must be equal in two fine-tunings that are the same: everything but times."""
    content = json.loads((output / "results.json").read_text())
    for seed in content["seeds"]:
        seed.pop("seconds")
    return content
