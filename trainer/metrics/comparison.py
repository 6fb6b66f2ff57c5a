"""Several runs on one page: their figures, what differs in their recipes, and charts with a line for each run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import tomli_w

from schemas.charts import COLORS, Chart, Line, TextOf, chart, chart_over_hours, percent, short
from schemas.pages import render
from trainer.config.record import UNRECORDED, flatten, shown_value
from trainer.metrics.curves import points_of
from trainer.metrics.figures import Fact, facts, figures, link, verdict
from trainer.metrics.presentation import shown_path
from trainer.metrics.run_page import REPORT_FILE, shown_changes
from trainer.metrics.run_record import RunRecord

MAX_RUNS = 2 * len(COLORS)
"""The most runs of a page: each color once as a solid line and once as a dashed one."""

CHARTS: tuple[tuple[str, str, TextOf, bool], ...] = (
    ("Held-out loss at [MASK]", "eval_mlm_loss_masked", short, True),
    ("Held-out loss", "eval_mlm_loss", short, True),
    ("Masked LM loss", "mlm_loss", short, True),
    ("Loss of replaced-token detection", "rtd_loss", short, False),
    ("Held-out accuracy", "eval_mlm_accuracy", percent, False),
    ("Learning rate", "lr", short, False),
    ("Gradient norm", "grad_norm", short, False),
    ("Tokens per second", "tokens_per_second", short, False),
)
"""The charts: a title, the metric, how its values are formatted, and whether it is drawn over hours, too."""


class Row(NamedTuple):
    """A row of a table: its name, the text of each run, and the numbers of the best ones."""

    name: str
    cells: list[str]
    best: list[int]


def comparison(records: Sequence[RunRecord], page_folder: str, refresh: int | None = None) -> str:
    """Return the page of two runs or more, which have metrics. The other arguments are those of `report`."""
    names = distinct_names([record.run for record in records])
    runs = [
        _shown(number, name, record, page_folder)
        for number, (name, record) in enumerate(zip(names, records, strict=True))
    ]
    return render(
        "trainer.metrics",
        "comparison.html",
        title=f"{len(runs)} runs",
        refresh=refresh,
        runs=runs,
        figures=_figures(records),
        do_compare=_do_compare(records),
        differences=_differences(records),
        charts=list(_charts(runs, records)),
    )


def distinct_names(runs: Sequence[str]) -> list[str]:
    """Return as many of the last parts of each path as are needed to tell them apart, and two if folders differ."""
    parts = [PurePath(os.path.abspath(run) if "://" not in run else run.rstrip("/")).parts for run in runs]
    fewest = 1 if len({path[:-1] for path in parts}) == 1 else 2
    by_length = (["/".join(path[-length:]) for path in parts] for length in range(fewest, max(map(len, parts)) + 1))
    return next((names for names in by_length if len(set(names)) == len(names)), list(runs))


def _shown(number: int, name: str, record: RunRecord, page_folder: str) -> dict[str, Any]:
    """Return one run as the page shows it. link: to its own report, empty if there is none."""
    own_report = Path(record.folder, REPORT_FILE)
    has_link = record.folder == record.run and own_report.exists()
    return dict(
        name=name,
        color=COLORS[number % len(COLORS)],
        is_dashed=number >= len(COLORS),
        link=link(str(own_report), page_folder) if has_link else "",
        verdict=verdict(record),
        facts=[Fact("folder", shown_path(record.run)), *facts(record, page_folder)],
        changes=shown_changes(record),
        recipe=tomli_w.dumps(record.recipe),
    )


def _do_compare(records: Sequence[RunRecord]) -> bool:
    """Return whether all runs have the same held-out pairs, by their rows, or by their path where these are unknown."""
    rows = {record.starts[-1].held_out if record.starts else "" for record in records}
    if "" not in rows:
        return len(rows) == 1
    return len({str(record.recipe.get("evaluation", {}).get("pairs")) for record in records}) == 1


def _figures(records: Sequence[RunRecord]) -> list[Row]:
    """Return the key figures, and the loss after the last step at which all runs were evaluated.

    The best of each row is marked if the runs have the same held-out pairs.
    """
    do_compare = _do_compare(records)
    found = [figures(record) for record in records]
    rows = []
    for name, first in found[0].items():
        shown = [one[name] for one in found]
        cells = [figure.text for figure in shown]
        if set(cells) != {"-"}:
            rows.append(Row(name, cells, _best([figure.value for figure in shown], first.better if do_compare else 0)))
    return [*(_at_common_step(records) if do_compare else []), *rows]


def _at_common_step(records: Sequence[RunRecord]) -> list[Row]:
    """Return the held-out losses after the last step at which all runs were evaluated, if that is not their last."""
    evaluated = [{line["step"]: line["eval_mlm_loss"] for line in record.evaluations} for record in records]
    common = set(evaluated[0]).intersection(*evaluated)
    if not common or all(max(one) == max(common) for one in evaluated):
        return []
    step = max(common)
    values = [one[step] for one in evaluated]
    cells = ["-" if value is None else f"{value:.4f}" for value in values]
    return [Row(f"held-out loss after step {step:,}, which all have", cells, _best(values, -1))]


def _best(values: Sequence[float | None], better: int) -> list[int]:
    """Return the numbers of the best values, none if all are equal."""
    known = [value for value in values if value is not None]
    if better == 0 or len(set(known)) < 2:
        return []
    best = max(known) if better > 0 else min(known)
    return [number for number, value in enumerate(values) if value == best]


def _differences(records: Sequence[RunRecord]) -> list[Row]:
    """Return the keys of the recipes that differ. Where a run's files are does not count."""
    recipes = [flatten(record.recipe) for record in records]
    keys = [key for key in dict.fromkeys(key for one in recipes for key in one) if key not in UNRECORDED]
    rows = [Row(key, [_cell(one.get(key)) for one in recipes], []) for key in keys]
    for name in ("pairs", "vocabulary"):
        found = [getattr(record.starts[-1], name) if record.starts else "-" for record in records]
        rows.append(Row(f"fingerprint of the {name}", [fingerprint[:8] or "-" for fingerprint in found], []))
    return [row for row in rows if len(set(row.cells)) > 1]


def _cell(value: object) -> str:
    return shown_path(value) if isinstance(value, str) else shown_value(value)


def _charts(runs: Sequence[dict[str, Any]], records: Sequence[RunRecord]) -> Iterator[Chart]:
    for title, metric, text_of, is_over_hours in CHARTS:
        drawn = _lines(runs, records, metric, "step")
        # One point alone says no more than the figures.
        if sum(len(line.points) for line in drawn) < 2:
            continue
        last_step = max(line.points[-1][0] for line in drawn)
        yield chart(title, drawn, max(last_step, 1), [], text_of)
        over_hours = _lines(runs, records, metric, "hours") if is_over_hours else []
        if over_hours:
            yield chart_over_hours(f"{title}, over hours", over_hours, text_of)


def _lines(runs: Sequence[dict[str, Any]], records: Sequence[RunRecord], metric: str, scale: str) -> list[Line]:
    drawn = [
        Line(run["name"], run["color"], points_of(record.lines, metric, scale), run["is_dashed"])
        for run, record in zip(runs, records, strict=True)
    ]
    return [line for line in drawn if line.points]
