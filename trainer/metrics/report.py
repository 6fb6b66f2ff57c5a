"""report.html: a run on one self-contained page, drawn from its metrics, with marks where it was resumed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import tomli_w

from schemas import storage
from schemas.masking import KINDS
from trainer.checkpoint.layout import best_step
from trainer.config.changes import RecipeChange
from trainer.config.changes import shown_value as value_text
from trainer.config.public import changes_without_secrets, without_secrets
from trainer.metrics.charts import STYLE, Line, chart
from trainer.metrics.log import read_metrics

FILE = "report.html"
Metrics = list[dict[str, Any]]


def write_report(run: str, resumed_at: list[int], changes: Sequence[RecipeChange] = ()) -> None:
    """Write RUN/report.html from the metrics and the recipe of RUN.

    resumed_at: the steps after which the run resumed. changes: how its recipe changed there.
    """
    lines = read_metrics(run)
    if lines:
        storage.publish(str(Path(run) / FILE), report(run, lines, resumed_at, changes).encode(), durable=False)


def report(run: str, lines: Metrics, resumed_at: list[int], changes: Sequence[RecipeChange] = ()) -> str:
    """The page. What is drawn follows from the arguments and from the checkpoints that are there."""
    title = escape(Path(run).name)
    content = tomllib.loads((Path(run) / "recipe.toml").read_text())
    recipe = escape(tomli_w.dumps(without_secrets(content)))
    sections = "".join(_section(name, drawn) for name, drawn in _charts(lines, resumed_at))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Clozeline run: {title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><style>{STYLE}</style></head><body><header><p class="brand">Clozeline run</p>'
        f"<h1>{title}</h1><p>{_resumes(resumed_at)}</p></header>{_figures(run, lines)}<main>{sections}"
        f"{_kinds(lines)}{_changes(changes_without_secrets(changes))}</main><section><details><summary>recipe.toml</summary><pre>{recipe}</pre></details></section>"
        "</body></html>\n"
    )


def _resumes(resumed_at: list[int]) -> str:
    if not resumed_at:
        return "One run, never resumed."
    steps = ", ".join(f"{step:,}" for step in resumed_at)
    return f"Resumed after {'steps' if len(resumed_at) > 1 else 'step'} {steps}: dashed in the charts."


def _figures(run: str, lines: Metrics) -> str:
    """What people quote, in large type."""
    last, held_out, chosen = lines[-1], [line for line in lines if "eval_mlm_loss" in line], best_step(run)
    rates = [line["tokens_per_second"] for line in lines if line.get("tokens_per_second") is not None]
    shown = {
        "steps": f"{last['step']:,}",
        "tokens": _or_dash(last.get("tokens"), short),
        "time": _or_dash(last.get("seconds"), duration),
        "tokens a second": _or_dash(median(rates) if rates else None, short),
        "masked LM loss": _or_dash(last.get("mlm_loss"), "{:.4f}".format),
        "accuracy": _or_dash(last.get("mlm_accuracy"), "{:.1%}".format),
    }
    if held_out:
        shown["held-out loss"] = _or_dash(held_out[-1]["eval_mlm_loss"], "{:.4f}".format)
    if chosen is not None:
        shown["best checkpoint"] = f"step {chosen:,}"
    return "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown.items()) + "</dl>"


def _charts(lines: Metrics, resumed_at: list[int]) -> Iterator[tuple[str, str]]:
    """(title, SVG) of every chart that has something to show."""
    kinds = {f"eval_{kind}_mlm_loss": kind.replace("_", " ") for kind in KINDS}
    shares: list[tuple[str, dict[str, str]]] = [
        ("Accuracy", {"mlm_accuracy": "masked LM", "pair_accuracy": "pairs", "eval_mlm_accuracy": "masked LM, held out",
                      "eval_pair_accuracy": "pairs, held out"}),
        ("Padding", {"padding_fraction": "share of what is computed"}),
        ("Waiting for data", {"loader_stall_fraction": "share of the time"}),
    ]  # fmt: skip
    numbers: list[tuple[str, dict[str, str]]] = [
        ("Loss", {"mlm_loss": "masked LM", "pair_loss": "pairs", "eval_mlm_loss": "masked LM, held out",
                  "eval_pair_loss": "pairs, held out"}),
        ("Loss on held-out pairs, by kind of mask", kinds),
        ("Learning rate", {"lr": "of each update"}),
        ("Gradient norm", {"grad_norm": "before clipping"}),
        ("Tokens a second", {"tokens_per_second": "all ranks, without padding"}),
    ]  # fmt: skip
    for charts, told in ((numbers, short), (shares, percent)):
        for title, names in charts:
            drawn = _drawn(lines, names, resumed_at, told)
            if drawn:
                yield title, drawn


def _drawn(lines: Metrics, names: dict[str, str], resumed_at: list[int], told: Callable[[float], str]) -> str:
    """One chart of the named metrics; a value that is missing or not finite is left out."""
    found = []
    for (name, shown), colour in zip(names.items(), "abcd", strict=False):
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None and isfinite(line[name])]
        found += [Line(shown, colour, points)] if points else []
    return chart(found, lines[-1]["step"], resumed_at, told) if found else ""


def _kinds(lines: Metrics) -> str:
    """The newest held-out figures of every kind of mask."""
    measured = [line for line in lines if "eval_mlm_loss" in line]
    if not measured:
        return ""
    line = measured[-1]
    rows = "".join(
        f"<tr><td>{kind.replace('_', ' ')}</td>"
        f"<td>{_or_dash(line.get(f'eval_{kind}_mlm_loss'), '{:.4f}'.format)}</td>"
        f"<td>{_or_dash(line.get(f'eval_{kind}_perplexity'), '{:,.2f}'.format)}</td>"
        f"<td>{_or_dash(line.get(f'eval_{kind}_mlm_accuracy'), '{:.2%}'.format)}</td></tr>"
        for kind in KINDS
    )
    head = "<tr><th>masks</th><th>loss</th><th>perplexity</th><th>accuracy</th></tr>"
    return _section(f"Held-out pairs at step {line['step']:,}", f"<table>{head}{rows}</table>")


def _changes(changes: Sequence[RecipeChange]) -> str:
    """A table of how the recipe changed at resumes."""
    if not changes:
        return ""
    rows = "".join(
        f"<tr><td>{change.step + 1:,}</td><td>{escape(change.key)}</td>"
        f"<td>{escape(value_text(change.before))}</td><td>{escape(value_text(change.now))}</td></tr>"
        for change in changes
    )
    head = "<tr><th>from step</th><th>key</th><th>was</th><th>is</th></tr>"
    return _section("Changes of the recipe", f"<table>{head}{rows}</table>")


def _or_dash(value: float | None, text_of: Callable[[float], str]) -> str:
    """A number as text; "-" for one that is missing or not finite."""
    return "-" if value is None or not isfinite(value) else text_of(value)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def short(value: float) -> str:
    """Three figures or so. Example: `short(12345)` -> `"12.3k"`."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def duration(seconds: float) -> str:
    """Example: `duration(3725)` -> `"1 h 2 min"`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
