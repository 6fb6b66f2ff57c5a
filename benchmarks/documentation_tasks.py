"""Builds five small tasks, one per kind of fine-tuning task, from the documentation of installed Python packages.

    sentence    which package a paragraph is from
    pair        whether the second sentence follows the first one or is from another module of the package
    choice      which of four sentences follows
    tags        which words are code names (the documentation marks them with backquotes) and which are numbers
    span        which code name a paragraph mentions; no other code in it has backquotes

About one module in five, by a hash of its path, is held out: its text is neither in a training set nor in the corpus
for pretraining. Repeated paragraphs are used once, so held-out text is not repeated in training sets.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from deploy.demo.corpus import docstrings, modules_under

PACKAGES = ("apache_beam", "matplotlib", "numpy", "scipy", "sklearn", "torch")
"""Packages with much prose. The extra `dev` installs all of them."""

HELD_OUT_EVERY = 5
TRAINING_EXAMPLES = {"pair": 8000}
OTHER_TRAINING_EXAMPLES = 1500
"""The number of training examples by kind, and of all other kinds.

Fewer pairs teach a small encoder nothing that it does not know by heart."""

HELD_OUT_EXAMPLES = 600

PARAGRAPH_CHARACTERS = (80, 600)
"""The minimum and the maximum number of characters in a paragraph."""

CODE_MARKS = (">>>", "---", "===", "::", " : ")
"""Paragraphs that contain one of these are examples, tables or lists of parameters."""

CHOICES = 4
QUESTION = "Which name from the code is mentioned?"

SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")

ROLE = re.compile(r":[\w:]+:(?=`)")
"""Matches roles of reStructuredText, such as :class: in :class:`Tensor`."""

CODE_NAME = re.compile(r"`{1,2}~?\.?([A-Za-z_][\w.]*)`{1,2}")

WORD = re.compile(r"\w+|[^\w\s]")

Lines = list[dict[str, Any]]
"""The examples of a task, one JSON object each."""


@dataclass
class Module:
    """The documentation of one module. text: all docstrings. paragraphs: its prose, with backquotes."""

    package: str
    text: str
    paragraphs: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Modules:
    """All modules, in an order that depends only on the installed packages."""

    training: list[Module]
    held_out: list[Module]


# ---- Documentation ----


def read_modules() -> Modules:
    """Read the documentation of all packages."""
    root = Path(sysconfig.get_paths()["purelib"])
    modules = Modules([], [])
    for package in PACKAGES:
        for path in modules_under(root / package):
            text = ROLE.sub("", docstrings(path))
            if text:
                side = modules.held_out if is_held_out(path.relative_to(root)) else modules.training
                side.append(Module(package, text))

    seen: set[str] = set()
    for module in (*modules.training, *modules.held_out):
        module.paragraphs = [text for text in paragraphs_of(module.text) if text not in seen]
        seen.update(module.paragraphs)
    return modules


def is_held_out(path: Path) -> bool:
    digest = hashlib.blake2b(path.as_posix().encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % HELD_OUT_EVERY == 0


def paragraphs_of(text: str) -> Iterator[str]:
    """Yield the paragraphs that consist of sentences, each joined into one line."""
    shortest, longest = PARAGRAPH_CHARACTERS
    for block in text.split("\n\n"):
        paragraph = " ".join(block.split())
        is_prose = paragraph[:1].isupper() and paragraph.endswith(".")
        is_indented = any(line[:1].isspace() for line in block.splitlines())
        has_code = any(mark in paragraph for mark in CODE_MARKS)
        if is_prose and not is_indented and not has_code and shortest <= len(paragraph) <= longest:
            yield paragraph


def plain(text: str) -> str:
    """Return a text without backquotes."""
    return text.replace("`", "")


def followed_sentences(module: Module) -> Iterator[tuple[str, str]]:
    """Yield each sentence of a module's paragraphs with the next sentence of the paragraph."""
    for paragraph in module.paragraphs:
        sentences = SENTENCE_END.split(plain(paragraph))
        yield from pairwise(sentences)


# ---- Tasks ----


def which_package(modules: list[Module], draws: random.Random) -> Lines:
    return [
        {"text": plain(paragraph), "label": module.package} for module in modules for paragraph in module.paragraphs
    ]


def next_sentence(modules: list[Module], draws: random.Random) -> Lines:
    lines = []
    for module in modules:
        for first, second in followed_sentences(module):
            follows = draws.random() < 0.5
            text_pair = second if follows else other_sentence(modules, module, draws)
            lines.append({"text": first, "text_pair": text_pair, "label": "follows" if follows else "elsewhere"})
    return lines


def which_sentence_follows(modules: list[Module], draws: random.Random) -> Lines:
    lines = []
    for module in modules:
        for first, second in followed_sentences(module):
            choices = [other_sentence(modules, module, draws) for _ in range(CHOICES - 1)]
            label = draws.randrange(CHOICES)
            choices.insert(label, second)
            lines.append({"context": first, "choices": choices, "label": label})
    return lines


def other_sentence(modules: list[Module], module: Module, draws: random.Random) -> str:
    """Return a random sentence, not the first of its paragraph, from another module of the same package."""
    while True:
        other = draws.choice(modules)
        if other is module or other.package != module.package:
            continue
        pairs = list(followed_sentences(other))
        if pairs:
            return draws.choice(pairs)[1]


def names_and_numbers(modules: list[Module], draws: random.Random) -> Lines:
    lines = []
    for module in modules:
        for paragraph in module.paragraphs:
            line = tagged(paragraph)
            if any(tag == "B-NAME" for tag in line["tags"]):
                lines.append(line)
    return lines


def tagged(paragraph: str) -> dict[str, list[str]]:
    """Return the words of a paragraph with their tags, without the backquotes that mark names."""
    words: list[str] = []
    tags: list[str] = []

    def add(text: str, is_name: bool) -> None:
        for number, word in enumerate(WORD.findall(plain(text))):
            words.append(word)
            if is_name:
                tags.append("B-NAME" if number == 0 else "I-NAME")
            else:
                tags.append("B-NUMBER" if word.isdecimal() else "O")

    end = 0
    for name in CODE_NAME.finditer(paragraph):
        add(paragraph[end : name.start()], is_name=False)
        add(name[1], is_name=True)
        end = name.end()
    add(paragraph[end:], is_name=False)
    return {"words": words, "tags": tags}


def mentioned_name(modules: list[Module], draws: random.Random) -> Lines:
    """Return one question for each paragraph in which only one code name has backquotes, with SQuAD's keys."""
    lines = []
    for module in modules:
        for paragraph in module.paragraphs:
            name = CODE_NAME.search(paragraph)
            if name is None:
                continue

            before = paragraph[: name.start()]
            after = paragraph[name.end() :]
            has_other_code = "`" in before + after
            if not has_other_code:
                answer = {"text": name[1], "answer_start": len(before)}
                lines.append({"context": before + name[1] + after, "question": QUESTION, "answers": [answer]})
    return lines


TASKS: dict[str, Callable[[list[Module], random.Random], Lines]] = {
    "sentence": which_package,
    "pair": next_sentence,
    "choice": which_sentence_follows,
    "tags": names_and_numbers,
    "span": mentioned_name,
}
"""By kind of task, the function that builds its examples."""


# ---- Files ----


def write_tasks(modules: Modules, output: Path) -> None:
    """Write the train and dev files in OUTPUT/KIND, with examples drawn with a fixed seed, and print their numbers."""
    for kind, make in TASKS.items():
        folder = output / kind
        folder.mkdir(parents=True, exist_ok=True)
        for name, side, most in (
            ("train", modules.training, TRAINING_EXAMPLES.get(kind, OTHER_TRAINING_EXAMPLES)),
            ("dev", modules.held_out, HELD_OUT_EXAMPLES),
        ):
            draws = random.Random(f"{kind} {name}")
            lines = make(side, draws)
            draws.shuffle(lines)
            write_set(folder, name, kind, lines[:most])
            print(f"{kind}: {len(lines[:most]):,} examples in {name}", flush=True)


def write_set(folder: Path, name: str, kind: str, lines: Lines) -> None:
    """Write one set, as JSON in SQuAD's format for spans and as JSONL for the other kinds."""
    if kind != "span":
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return

    paragraphs = []
    for number, line in enumerate(lines):
        question = {"id": str(number), "question": line["question"], "answers": line["answers"]}
        paragraphs.append({"context": line["context"], "qas": [question]})
    (folder / f"{name}.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]}))


def write_corpus(modules: Modules, path: Path) -> None:
    """Write the corpus for pretraining: the documentation of all modules that are not held out."""
    lines = [json.dumps({"text": module.text}) for module in modules.training]
    path.write_text("".join(f"{line}\n" for line in lines))
