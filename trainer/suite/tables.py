"""Builds the tables of a suite from results.json, and writes them as OUTPUT/table.md and OUTPUT/report.html.

The first table shows the means and intervals of all encoders side by side, the second one their differences from the
first encoder, and the third one all statistics. Only the column of times depends on when and where a suite ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from schemas.pages import render
from trainer.finetune.results import FEWEST_OF_AN_INTERVAL, STATISTICS, spread, with_interval
from trainer.metrics.presentation import duration, shown_path
from trainer.suite.suite_results import Cell

AVERAGE = "average"
DASH = "-"
BASELINE = "most frequent label"

GUESSING = "†"
"""Marks a score that is no better than that of always predicting the most frequent label."""

CERTAIN = "*"
"""Marks a difference whose interval leaves out 0."""


@dataclass(frozen=True)
class Row:
    """A row of a table. best: the position of the score whose interval lies above all others, None without one."""

    cells: list[str]
    best: int | None = None


@dataclass(frozen=True)
class Table:
    """A table with sentences above and below it."""

    title: str
    columns: list[str]
    rows: list[Row]
    above: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)


class Scored(NamedTuple):
    """A part of the suite, or the average: its cells, one for each encoder. An average may have no score."""

    name: str
    metric: str
    has_seeds: bool
    cells: list[Cell | None]


def scored(content: dict[str, Any]) -> list[Scored]:
    """Return the parts of the suite, and the average if it is of more than one task."""
    labels = labels_of(content)
    lines = []
    for row in content["rows"]:
        cells = [content["scores"][label][row["name"]] for label in labels]
        lines.append(Scored(row["name"], row["metric"], bool(row["sets"]), cells))

    counted = sum(row["in_average"] for row in content["rows"])
    if counted > 1:
        averages = [content["averages"][label] for label in labels]
        lines.append(Scored(AVERAGE, f"of {counted}", True, averages))
    return lines


def tables_of(content: dict[str, Any]) -> list[Table]:
    """Return the tables that have rows. content: that of results.json."""
    tables = [score_table(content), difference_table(content), detail_table(content)]
    tables += [phenomenon_table(content), probe_table(content)]
    return [table for table in tables if table.rows]


def markdown(content: dict[str, Any]) -> str:
    """Return the text of table.md. content: that of results.json."""
    parts = [f"# {title_of(content)}"]
    for table in tables_of(content):
        parts += [f"## {table.title}", *table.above, markdown_table(table), *table.below]
    if error_lines(content):
        parts += ["## Not measured", "\n".join(f"- {line}" for line in error_lines(content))]
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """Return a table in Markdown. The best score is bold, and all columns after the first are right-aligned."""
    lines = [table.columns, ["---", *["---:"] * (len(table.columns) - 1)]]
    for row in table.rows:
        lines.append([f"**{cell}**" if position == row.best else cell for position, cell in enumerate(row.cells)])
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def page(content: dict[str, Any]) -> str:
    """Return report.html. content: that of results.json."""
    return render(
        "trainer.suite",
        "suite.html",
        title=title_of(content),
        encoders=[encoder | {"folder": shown_path(encoder["folder"])} for encoder in content["encoders"]],
        tables=tables_of(content),
        errors=error_lines(content),
    )


def title_of(content: dict[str, Any]) -> str:
    return content["suite"] or "Probe"


def labels_of(content: dict[str, Any]) -> list[str]:
    return [encoder["label"] for encoder in content["encoders"]]


def error_lines(content: dict[str, Any]) -> list[str]:
    """Return a line for each missing score and for each part that was left out."""
    lines = []
    for row in content["rows"]:
        for label in labels_of(content):
            error = content["scores"][label][row["name"]]["error"]
            if error is not None:
                lines.append(f"{label}/{row['name']}: {error}")
    for label, probe in content["probes"].items():
        if probe["error"] is not None:
            lines.append(f"{label}/probe: {probe['error']}")

    for part in content["skipped"]:
        source = f" (from {part['source']})" if part["source"] else ""
        lines.append(f"{part['name']}: left out, because files are missing: {', '.join(part['files'])}{source}")
    return lines


# ---- Scores ----


def score_table(content: dict[str, Any]) -> Table:
    rows = []
    for name, metric, _, cells in scored(content):
        best = best_position(cells)
        rows.append(Row([name, metric, *map(text_of, cells)], None if best is None else best + 2))
    columns = ["task", "metric", *labels_of(content)]
    return Table("Scores", columns, rows, above=[legend(content)], below=note_on_guessing(content))


def text_of(cell: Cell | None) -> str:
    """Return a mean as text, with the half-width of its interval if there is one, and perhaps GUESSING."""
    if cell is None or cell["spread"] is None:
        return DASH

    text = with_interval(cell["spread"])
    return f"{text} {GUESSING}" if is_guessing(cell) else text


def is_guessing(cell: Cell) -> bool:
    """Return whether a mean is no better than the score of always predicting the most frequent label."""
    return cell["baseline"] is not None and cell["spread"]["mean"] <= cell["baseline"]


def best_position(cells: Sequence[Cell | None]) -> int | None:
    """Return the position of the cell whose interval lies above all others, None if there is no such cell.

    A row with a cell without an interval has no best one.
    """
    intervals = [interval_of(cell) for cell in cells if cell is not None and (cell["spread"] or {}).get("interval")]
    if len(cells) < 2 or len(intervals) < len(cells):
        return None

    best = max(range(len(cells)), key=lambda position: intervals[position][0])
    others = [high for position, (_, high) in enumerate(intervals) if position != best]
    return best if intervals[best][0] > max(others) else None


def interval_of(cell: Cell) -> tuple[float, float]:
    mean, half = cell["spread"]["mean"], cell["spread"]["interval"]
    return mean - half, mean + half


def legend(content: dict[str, Any]) -> str:
    seeds = content["seeds"]
    if not any(row["sets"] for row in content["rows"]):
        return "Scores of minimal pairs, for which nothing is trained."
    if seeds == 1:
        return "Scores of a single seed. They say nothing about how much scores differ between seeds."

    text = f"Mean of {seeds} seeds, which are too few for an interval."
    if seeds >= FEWEST_OF_AN_INTERVAL:
        text = f"Mean of {seeds} seeds ± half of its 95% interval, except where all seeds have the same score."
        if len(labels_of(content)) > 1:
            text += " A score is marked where its interval lies above those of all others."
    return " ".join([text, *shared_encoders(content["rows"])])


def shared_encoders(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each task whose best encoder other tasks start from, whose values are not independent."""
    followers: dict[str, list[str]] = {}
    for row in rows:
        if row["starts_from"] is not None:
            followers.setdefault(row["starts_from"], []).append(row["name"])

    return [
        f"All seeds of {', '.join(names)} start from one encoder, the best of {source}. Their intervals, and that of "
        f"an average with them, leave out how much the encoders of {source} differ, and so are too narrow."
        for source, names in followers.items()
    ]


def note_on_guessing(content: dict[str, Any]) -> list[str]:
    cells = [cell for of_encoder in content["scores"].values() for cell in of_encoder.values()]
    if not any(cell["error"] is None and is_guessing(cell) for cell in cells):
        return []
    return [
        f"{GUESSING} No better than always predicting the most frequent label of the training set: nothing was "
        "learned. Try other training values; see docs/troubleshooting.md."
    ]


# ---- The other tables ----


def difference_table(content: dict[str, Any]) -> Table:
    """Return the table of differences from the first encoder, with the same seed.

    Without another encoder, or with too few seeds for an interval, it has no rows.
    """
    label, *others = labels_of(content)
    rows = []
    for name, _, has_seeds, (first, *cells) in scored(content):
        if has_seeds and others and content["seeds"] >= FEWEST_OF_AN_INTERVAL:
            rows.append(Row([name, *(difference(cell, first) for cell in cells)]))

    explained = (
        f"Scores minus those of {label} with the same seed, which has the same order of examples: the mean ± half of "
        f"its 95% interval. {CERTAIN} marks an interval without 0."
    )
    return Table(f"Differences from {label}", ["task", *others], rows, above=[explained])


def difference(cell: Cell | None, first: Cell | None) -> str:
    """Return the mean of a cell's values minus the first encoder's as text, with half of its interval."""
    if cell is None or first is None or not cell["values"] or len(cell["values"]) != len(first["values"]):
        return DASH

    found = spread([value - of_first for value, of_first in zip(cell["values"], first["values"], strict=True)])
    mean, half = found["mean"], found["interval"]
    assert mean is not None
    if half is None:
        return f"{mean:+.4f}"
    return f"{mean:+.4f} ± {half:.4f}" + (f" {CERTAIN}" if abs(mean) > half else "")


def detail_table(content: dict[str, Any]) -> Table:
    rows = []
    for name, _, _, cells in scored(content):
        for label, cell in zip(labels_of(content), cells, strict=True):
            if cell is not None:
                spread = cell["spread"] or {}
                time = duration(3600 * cell["hours"]) if cell["spread"] else DASH
                rows.append(Row([name, label, *numbers(spread.get(key) for key in STATISTICS.values()), time]))
    return Table("Quartiles and times", ["task", "encoder", *STATISTICS, "time"], rows)


def numbers(values: Iterable[float | None]) -> list[str]:
    return [DASH if value is None else f"{value:.4f}" for value in values]


def phenomenon_table(content: dict[str, Any]) -> Table:
    labels = labels_of(content)
    of_labels = [content["details"][label] for label in labels]
    names = {(part, name): None for parts in of_labels for part, phenomena in parts.items() for name in phenomena}

    rows = []
    for part, name in names:
        found = numbers(parts.get(part, {}).get(name) for parts in of_labels)
        rows.append(Row([f"{part}: {name}", *found]))
    return Table("Minimal pairs: accuracy by phenomenon", ["phenomenon", *labels], rows)


def probe_table(content: dict[str, Any]) -> Table:
    probes = content["probes"]
    done = {label: probe for label, probe in probes.items() if probe["error"] is None}
    if not done:
        return Table("", [], [])

    rows = []
    for layer in range(max(len(probe["layers"]) for probe in done.values())):
        found = [probe["layers"][layer] if layer < len(probe["layers"]) else None for probe in probes.values()]
        rows.append(Row([str(layer), *numbers(found)]))
    baselines = [probe["baseline"]["score"] if label in done else None for label, probe in probes.items()]
    rows.append(Row([BASELINE, *numbers(baselines)]))

    first = next(iter(done.values()))
    title = f"Linear probe of each layer: {first['task']}, {first['metric']}"
    counts = first["examples"]
    of_all = f" of {counts['train']:,}" if counts["fitted"] < counts["train"] else ""
    note = (
        f"Fitted to {counts['fitted']:,}{of_all} training examples, and scored on the {counts['dev']:,} of the dev "
        f"set. The row {BASELINE} is the score of always predicting the most frequent label of the training set."
    )
    return Table(title, ["layer", *probes], rows, below=[note])
