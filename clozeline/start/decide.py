"""The values of every step for a text, a machine and a time, each with the reason that clozeline.toml gives for it.

The rules are those of docs/own_corpus.md. Nothing here is learned from the run: the same look at the same machine gives
the same file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator
from math import inf, isfinite
from typing import Any, NamedTuple

from clozeline.start import DEFAULT_HOURS
from pipeline.inspection import entries_for
from pipeline.look import Look, unreadable_in
from pipeline.shard.detection import AUTO, UNKNOWN
from schemas import storage
from schemas.errors import UsageError
from schemas.host_limits import usable_cores
from schemas.terminal import counted, megabytes
from trainer.config.load import recipe_comment, recipe_text

LAYOUTS = {
    "file": "a file of plain text is one document; blank lines divide its paragraphs",
    "line": "each line of plain text is a document: they are long or many, and none seen is blank",
    "blank_line": 'a blank line ends a document of plain text; "file" and "line" make one of each file or line',
}

MIN_OF_IDEOGRAPHS = 16_000  # some 8,000 of these are single characters
MANY = 0.05
"""Share of the text in a script (pipeline/shard/detection.py) that decides about the vocabulary. In "unspaced" ones
WordPiece would take a whole sentence for a word."""

HELD_OUT_DOCUMENTS = 500
"""Documents to hold out, about: some thousand rows give a steady loss."""
FEWEST_HELD_OUT = 6
"""Documents to hold out, about, of a small corpus. Chance decides on each, and that it takes none is then unlikely."""
LARGEST_SHARE = 0.2  # that is held out

CPU_RECIPES = ((0.75, "cpu_minutes"), (5.0, "cpu_hour"), (inf, "cpu_night"))
GPU_RECIPES = ((2.0, "gpu_minutes"), (inf, "gpu_day"))
"""(hours, recipe) up to which the recipe is the one for a CPU or for GPUs."""
MINUTES_OF_CPU = CPU_RECIPES[0][1]

MOST_ENTRIES_IN_MINUTES = 8_000
"""Of a vocabulary for MINUTES_OF_CPU: a larger one costs more steps than it is worth (docs/gallery.md)."""

LEAST_HOURS = 0.01
SECONDS_TO_START = 12
"""Of a training, or more on a busy machine: a third of the least hours."""

BYTES_OF_TOKEN = 4  # of English in 8,000 to 30,000 WordPieces, about
LENGTH = 128  # tokens in a row
FEWEST_BATCHES = 2
"""Batches that the text has to fill: one is needed, but the size is an estimate, and copies are dropped."""
LITTLE_TEXT = 2_000_000
LEARNED_BY_HEART = 100_000  # bytes: minutes of training go over so little hundreds of times
PREPARED_IN_A_SECOND = 3_500_000
"""Bytes of text that a core takes through `shard`, `vocab` and `pairs` (docs/measurements.md, "Pipeline speed")."""
ENOUGH_TEXT = 10_000_000
"""Bytes of text: below the first little is learned, and ten minutes learn hardly more from more than the second."""


DATASET_OF_HUB = re.compile(r"hf://(datasets/[^/@]+/[^/@]+)")


class Setting(NamedTuple):
    """A value of the plan, and why it is that."""

    value: Any
    why: str = ""


ABSENT = Setting(None)
"""A line that is not there."""

Sections = dict[str, dict[str, Setting]]
"""The settings of each step by their names, which are flags of its command or keys of a recipe."""


def decide(folder: str, look: Look, gpus: int, hours: float, language: str | None) -> Sections:
    """Return the settings of all steps. gpus: of this machine. language: that of --language, if it was given."""
    train = _train(look, gpus, hours)
    return {
        "shard": _shard(folder, look, language),
        "vocab": _vocab(look, train["config"].value),
        "pairs": {
            "objective": Setting("full_sentences", "rows without padding; the kind that the recipe takes"),
            "max_length": Setting(LENGTH, "tokens in a row"),
        },
        "train": train,
        "export": {},
    }


def _shard(folder: str, look: Look, language: str | None) -> dict[str, Setting]:
    settings = {"input": Setting([folder])}
    if look.unreadable:
        settings["exclude"] = Setting(
            unreadable_in(folder, look), "cannot be read; without this line the whole step fails"
        )
    settings["corpus_name"] = Setting(_corpus_name(folder), "of this text, for the cards")
    if dataset := DATASET_OF_HUB.match(folder):
        settings["corpus_url"] = Setting(f"https://huggingface.co/{dataset[1]}", "where its license stands, too")
    settings |= {
        "language": _language(look, language),
        "encoding": Setting("auto", "each file of text in the encoding that its bytes show"),
        "dedup": Setting(
            "exact", '"minhash" also drops documents that are nearly equal, as those of the web often are'
        ),
        "holdout": _holdout(look.documents),
    }
    if any(kind.name == "text" for kind in look.kinds):
        settings["text_layout"] = Setting(look.text_layout, LAYOUTS[look.text_layout])
    if look.is_of_sentences:
        settings["sentence_splitter"] = Setting(
            "newline", "each line is a sentence, as it seems; without, it finds them"
        )
    if look.text_key != "text":
        settings["text_key"] = Setting(look.text_key, "the keys or columns of the text; the first that a file has")
    return settings


def _corpus_name(folder: str) -> str:
    """Return the name of a folder, a file or a dataset; of a pattern, that of the folder in front of it."""
    if dataset := DATASET_OF_HUB.match(folder):
        return dataset[1].removeprefix("datasets/")
    named = re.split(r"[^/]*[*?\[]", storage.printable(folder))[0]
    return os.path.basename(os.path.abspath(named)).lstrip("-") or "texts"


def _holdout(documents: int) -> Setting:
    share = min(0.05, max(0.005, HELD_OUT_DOCUMENTS / max(documents, 1)))
    share = max(share, FEWEST_HELD_OUT / max(documents, 1))
    if share > LARGEST_SHARE:
        return Setting(False, f"too few to hold some out: {counted(documents, 'document')}; 0.1 would hold out a tenth")
    return Setting(round(share, 4), "the share of documents that only measure the model")


def _language(look: Look, given: str | None) -> Setting:
    if given is not None:
        return Setting(given)
    if look.language is None:
        return Setting("en", "a guess: that of the text was not found")
    found = ", ".join(f"{code} {part:.0%}" for code, part in list(look.languages.items())[:4] if part >= 0.005)
    hints = {AUTO: "; auto finds that of each document", UNKNOWN: "; not known for sure: name it, such as chr"}
    how = hints.get(look.language, "")
    return Setting(look.language, f"of the sampled text: {found}{how}")


def _vocab(look: Look, recipe: str) -> dict[str, Setting]:
    size = entries_for(look.text_bytes)
    why = f"for some {megabytes(look.text_bytes)} of text"
    has_ideographs = look.scripts.get("ideographs", 0) > MANY
    most = MIN_OF_IDEOGRAPHS if has_ideographs else MOST_ENTRIES_IN_MINUTES
    if recipe == MINUTES_OF_CPU and size > most:
        size, why = most, f"the most for minutes on a CPU; more hours of this text take {size:,}"
    if has_ideographs and size < MIN_OF_IDEOGRAPHS:
        size = MIN_OF_IDEOGRAPHS
        why = "at most: in Chinese and Japanese characters take thousands of entries; little text fills fewer"

    if look.scripts.get("unspaced", 0) > MANY:
        return {
            "model": Setting("unigram", "needs no spaces between words"),
            "size": Setting(size, why),
        }
    return {"model": Setting("wordpiece", "BERT's kind; others are bytebpe and unigram"), "size": Setting(size, why)}


def check_hours(hours: float, place: str) -> None:
    """Raise UsageError if nothing is left of the hours after the start of a training. place: where they stand."""
    if hours < LEAST_HOURS:
        raise UsageError(
            f"{place} {hours:g} is too short: a training takes some {SECONDS_TO_START} s to start, and then measures "
            f"its steps. Give {LEAST_HOURS:g} or more to try it, and {DEFAULT_HOURS} or more for a first model."
        )


def warnings(look: Look, sections: Sections) -> Iterator[str]:
    """Yield what makes a poor model of this text in these hours, what to expect of it, and what to do."""
    if look.unreadable:
        files = sum(kind.files for kind in look.kinds)
        yield (
            f"Warning: the plan leaves out what cannot be read, {len(look.unreadable):,} of {counted(files, 'file')} "
            "(exclude), an archive as a whole. Repair it first if it matters."
        )
    if look.text_bytes < LITTLE_TEXT:
        expected = "knows which words are common, and hardly which belong together"
        if look.text_bytes < LEARNED_BY_HEART:
            expected = "learns this text by heart, and says little about any other"
        yield (
            f"Warning: {megabytes(look.text_bytes)} of text is little. Expect a model that {expected}. Add text: "
            f"more than {LITTLE_TEXT / 1e6:g} MB; {ENOUGH_TEXT / 1e6:g} MB is enough for ten minutes of training."
        )
    recipe, hours = (sections["train"][key].value for key in ("config", "run.max_hours"))
    yield from few_hours(recipe, hours)
    preparing = look.text_bytes / (PREPARED_IN_A_SECOND * usable_cores()) / 3600
    if preparing > hours / 2:
        yield (
            f"Warning: the steps before the training take some {preparing:.1f} hours for {megabytes(look.text_bytes)} "
            f"of text, and {hours:g} hours of training read only a part of it. Give some of its files, as with a "
            "pattern."
        )


def few_hours(recipe: str, hours: float) -> Iterator[str]:
    """Yield a warning if these hours are few for a recipe that `decide` has chosen."""
    meant = _recipe_of(recipe)["run"]["max_hours"]
    if hours < meant / 2:
        yield (
            f"Warning: {hours:g} hours are few for {recipe}, which is made for {meant:g}. Expect blanks that are "
            f"filled with common words. Give --hours {meant:g}, or more."
        )


def too_few_gpus(train: dict[str, Any], gpus: int) -> Iterator[str]:
    """Yield a warning if a plan's [train] is for more GPUs than this machine has."""
    recipe, processes = train["config"], train.get("processes", 1)
    if recipe not in [name for _, name in GPU_RECIPES] or processes <= gpus:
        return
    if gpus:
        advice = f"Set processes = {gpus}."
    else:
        advice = (
            "In the same hours a CPU makes a small fraction of the steps. Set config to a recipe for a CPU, such as "
            f'"{MINUTES_OF_CPU}", and processes = 1, or give another --output for another plan.'
        )
    has = counted(gpus, "GPU") if gpus else "no GPU"
    yield f"Warning: the plan's [train] is for {counted(processes, 'GPU')}, and this machine has {has}. {advice}"


def expected(look: Look, sections: Sections) -> list[str]:
    """Return what was measured of other English text with this recipe, if this text is English and not very little."""
    train, language = sections["train"], sections["shard"]["language"].value
    if language != "en" or look.text_bytes < LITTLE_TEXT or "schedule.warmup_steps" in train:
        return []
    found = recipe_comment(train["config"].value, "Expected")
    return [f"For comparison, of other text: {found}"] if found else []


def _recipe_of(name: str) -> dict[str, Any]:
    return tomllib.loads(recipe_text(name))


def _least_text(recipe: str) -> int:
    """Return the bytes of text that fill the first steps of a recipe, about."""
    return FEWEST_BATCHES * _recipe_of(recipe)["batch"]["global_batch"] * LENGTH * BYTES_OF_TOKEN


def _recipe_for(look: Look, gpus: int, hours: float) -> tuple[str, str, int]:
    """Return a recipe, why it is that one, and its processes. Raises UsageError if the text is too little for it."""
    for_gpus = _within(GPU_RECIPES, hours)
    for recipe in (for_gpus, GPU_RECIPES[0][1]):
        if gpus and look.text_bytes >= _least_text(recipe):
            return recipe, "for this many hours on GPUs" if recipe == for_gpus else "for so little text", gpus

    recipe = _within(CPU_RECIPES, hours)
    least = _least_text(recipe)
    if look.text_bytes < least:
        raise UsageError(
            f"{megabytes(look.text_bytes)} of text is too little to train on: {recipe} needs {megabytes(least)} for "
            f"its first steps, and less than {LITTLE_TEXT / 1e6:g} MB teaches a model little. Add text."
        )
    return recipe, "for so little text" if gpus else "for this many hours on a CPU", 1


def _within(recipes: tuple[tuple[float, str], ...], hours: float) -> str:
    return next(name for most, name in recipes if hours <= most)


def _train(look: Look, gpus: int, hours: float) -> dict[str, Setting]:
    recipe, why, processes = _recipe_for(look, gpus, hours)
    values = _recipe_of(recipe)
    size = f"{values['model']['num_hidden_layers']} layers, {values['model']['hidden_size']} wide"
    why += f": {size}, {counted(values['batch']['global_batch'], 'row')} a step"
    takes = "one for each GPU" if recipe.startswith("gpu") else "its threads use all cores"
    settings = {
        "config": Setting(recipe, f"{why}; `clozeline recipes {recipe}` prints it"),
        "processes": Setting(processes, takes),
        "run.max_hours": Setting(
            hours,
            "how many steps fit is measured on the first ones; any key of the recipe can stand here, such as "
            '"optimizer.lr" = 1e-3',
        ),
    }
    meant = values["run"]["max_hours"]
    if hours < meant:
        warmup, every = values["schedule"]["warmup_steps"], values["evaluation"]["every"]
        short = "fewer than the recipe's, for so short a run"
        settings["schedule.warmup_steps"] = Setting(max(10, round(warmup * hours / meant)), short)
        # One takes as long as dozens of steps. Checkpoints, at multiples of the recipe's number, are evaluated, too.
        most = max(every // 3, int(every * hours / meant))
        steps = next(steps for steps in range(most, 0, -1) if every % steps == 0)
        settings["evaluation.every"] = Setting(steps, "fewer than the recipe's, for a few held-out points")
        settings["checkpoint.every"] = Setting(steps, "what a power cut loses at most, in steps")
    return settings


def changes(
    plan: dict[str, dict[str, Any]], hours: float | None, language: str | None, look: Callable[[], Look]
) -> Sections:
    """Return the settings that --hours and --language, if given, change in a plan; None is one without a line.

    What follows from the earlier hours is decided again, for the plan's kind of machine, and what a user has set stays:
    such as another recipe, or a length in steps. look: returns what the folder holds now.
    """
    sections: Sections = {}
    if language not in (None, plan["shard"].get("language")):
        sections["shard"] = {"language": Setting(language)}

    train = plan["train"]
    before, processes = train.get("run.max_hours"), train.get("processes", 1)
    if hours is None or hours == before or not isinstance(before, int | float) or not isfinite(before):
        return sections
    found, gpus = look(), processes if train["config"] in [name for _, name in GPU_RECIPES] else 0
    old, new = (decide("", found, gpus, time, None) for time in (before, hours))
    if train["config"] != old["train"]["config"].value:
        return sections | {"train": {"run.max_hours": Setting(hours)}}

    for name in ("vocab", "train"):
        decided = {key: (old[name].get(key, ABSENT), new[name].get(key, ABSENT)) for key in old[name] | new[name]}
        followed = {key: now for key, (was, now) in decided.items() if plan[name].get(key) == was.value != now.value}
        sections |= {name: followed} if followed else {}
    return sections
