"""What a report says of a run in numbers and in words: its key figures, a verdict, and how it was made."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from math import exp, isfinite
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import quote

from schemas import storage
from schemas.charts import short
from schemas.terminal import counted
from trainer.metrics.presentation import duration, or_dash, shown_path, three_digits
from trainer.metrics.run_record import RunRecord

CARD = "card.html"

NOTHING_LEARNED = 0.05
"""A held-out loss that is less than this below that of word frequencies alone, in nats, shows nothing learned."""

LEARNED_BY_HEART = 0.3
"""How far the training loss is below the held-out one, in nats, from which on the verdict says so."""


class Figure(NamedTuple):
    """A figure as text. better: -1 if the lowest `value` of several runs is the best, 1 if the highest, 0 if none."""

    text: str
    value: float | None = None
    better: int = 0


def figures(record: RunRecord) -> dict[str, Figure]:
    """Return the key figures of a run by name, those that people quote first, in the same order for every run."""
    last = record.last_line
    evaluation = record.evaluations[-1] if record.evaluations else {}
    rates = [line["tokens_per_second"] for line in record.lines if line.get("tokens_per_second") is not None]
    of_all = f" of {record.last_step:,}" if record.last_step is not None else ""
    digits = "{:.4f}".format

    found = {
        "held-out loss at [MASK]": _figure(evaluation.get("eval_mlm_loss_masked"), digits, -1),
        "held-out loss": _figure(evaluation.get("eval_mlm_loss"), digits, -1),
        "held-out, word frequencies alone": _figure(evaluation.get("eval_unigram_loss"), digits),
        "training loss": _figure(last.get("mlm_loss"), digits),
        "training loss at [MASK]": _figure(last.get("mlm_loss_masked"), digits),
        "training, word frequencies alone": _figure(last.get("unigram_loss"), digits),
        "training accuracy": _figure(last.get("mlm_accuracy"), "{:.1%}".format),
        "steps": Figure(f"{last['step']:,}{of_all}"),
        "tokens": _figure(last.get("tokens"), short),
        "passes over the data": _figure(_passes(record), three_digits),
        "time": _figure(last.get("seconds"), duration),
        "tokens per second": _figure(median(rates) if rates else None, short, 1),
        "parameters": _figure(record.starts[-1].parameters if record.starts else None, short),
        "best checkpoint": Figure(f"step {record.best:,}" if record.best is not None else "-"),
    }
    # With masking.replacement "100/0/0" they are the same.
    if found["training loss at [MASK]"].text == found["training loss"].text:
        found["training loss at [MASK]"] = Figure("-")
    return found


def known_figures(record: RunRecord) -> dict[str, str]:
    """Return the texts of the figures that a run has, and of those that every run should have."""
    return {name: figure.text for name, figure in figures(record).items() if figure.text != "-" or name in OF_EVERY_RUN}


OF_EVERY_RUN = ("training loss", "training accuracy", "tokens", "time", "tokens per second")


def _figure(value: float | None, text_of: Callable[[float], str], better: int = 0) -> Figure:
    is_known = value is not None and isfinite(value)
    return Figure(or_dash(value, text_of), value if is_known else None, better)


def _passes(record: RunRecord) -> float | None:
    """Return how often the pairs were read; None if that is unknown or phases have pairs of other sizes."""
    sizes = {start.pass_tokens for start in record.starts}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    tokens = record.last_line.get("tokens")
    return tokens / size if size and tokens is not None else None


# In words


def verdict(record: RunRecord) -> str:
    """Return what the held-out loss says, in sentences."""
    if not record.evaluations:
        return "" if record.recipe.get("evaluation", {}).get("pairs") else NO_EVALUATION

    *before, last = record.evaluations
    name = "eval_mlm_loss_masked" if last.get("eval_mlm_loss_masked") is not None else "eval_mlm_loss"
    loss = last[name]
    if loss is None:
        return "The last held-out loss is not finite."
    return " ".join([*_beside_frequencies(loss, last), *_course(loss, before, name), *_gap(loss, record, name)])


NO_EVALUATION = "There are no held-out pairs (evaluation.pairs), so nothing shows how the model does on other text."


def _beside_frequencies(loss: float, evaluation: dict[str, Any]) -> Iterator[str]:
    unigram = evaluation.get("eval_unigram_loss")
    if unigram is None:
        return
    if loss > unigram - NOTHING_LEARNED:
        yield "On held-out text the model is no better than word frequencies alone: it has not learned from context."
        return
    yield (
        f"On held-out text the loss is {unigram - loss:.2f} nats below that of word frequencies alone: the right token "
        f"gets {exp(unigram - loss):.3g} times the probability, in the geometric mean."
    )


def _course(loss: float, before: list[dict[str, Any]], name: str) -> Iterator[str]:
    earlier = [(line["step"], line[name]) for line in before if line.get(name) is not None]
    if not earlier:
        return
    step, previous = earlier[-1]
    lowest_step, lowest = min(earlier, key=lambda point: point[1])
    if loss < previous:
        yield f"The loss has fallen by {previous - loss:.3f} since the evaluation after step {step:,}."
    elif lowest < loss:
        yield f"The loss was lowest after step {lowest_step:,}, at {lowest:.4f}."


def _gap(loss: float, record: RunRecord, name: str) -> Iterator[str]:
    trained = record.last_line.get(name.removeprefix("eval_"))
    if trained is not None and trained < loss - LEARNED_BY_HEART:
        yield (
            f"The training loss is {loss - trained:.2f} lower: the model begins to know its text by heart. More text "
            "or fewer passes over it help."
        )


# How it was made


_PATH = re.compile(r"(?<![^\s='\"])(\w+:/)?/[^\s'\"]+")
"""An absolute path or a URL in a command."""


class Fact(NamedTuple):
    """A line about a run. link: relative to the page, empty without one."""

    name: str
    text: str
    link: str = ""


def facts(record: RunRecord, page_folder: str) -> list[Fact]:
    """Return how a run was made. page_folder: where the page will be, for links."""
    found = []
    if record.starts:
        last = record.starts[-1]
        found.append(Fact("started", record.starts[0].date))
        found.append(Fact("command", _PATH.sub(lambda match: shown_path(match[0]), last.command)))
        found.append(Fact("machine", f"{counted(last.ranks, 'rank')}, {last.machine}"))
        found.append(Fact("versions", ", ".join(f"{name} {number}" for name, number in last.versions.items())))

    for title, section in (("pairs", "data"), ("held-out pairs", "evaluation")):
        for folder in _folders(record.recipe, section):
            found.append(Fact(title, shown_path(folder), _link_to_card(folder, record, page_folder)))
    return found


def _folders(recipe: dict[str, Any], section: str) -> list[str]:
    """Return the folders of `pairs` in a section of the recipe and of its phases, each once."""
    values = [tables.get(section, {}).get("pairs") for tables in (recipe, *recipe.get("phases", []))]
    folders = [folder for value in values if value for folder in ([value] if isinstance(value, str) else value)]
    return list(dict.fromkeys(folders))


def _link_to_card(folder: str, record: RunRecord, page_folder: str) -> str:
    if not storage.is_local(folder):
        return ""
    for base in dict.fromkeys([*(start.folder for start in reversed(record.starts)), os.getcwd()]):
        card = Path(base, folder, CARD)
        if card.exists():
            return link(str(card), page_folder)
    return ""


def link(path: str, page_folder: str) -> str:
    """Return a path as the link of a page in `page_folder`."""
    return quote(os.path.relpath(path, page_folder))
