"""Formats the rows of a suite's tables as text, and builds OUTPUT/table.md.

The first table shows the means and intervals of all encoders side by side, and the second one all statistics. Only the
column of times depends on when and where a suite ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.metrics.presentation import duration
from trainer.suite.outcomes import Cell, best_label

AVERAGE = "average"
DASH = "-"
BASELINE = "most frequent label"

GUESSING = "†"
"""Marks a score that is no better than that of always predicting the most frequent label."""

FEW_SEEDS = 3
"""The largest number of seeds whose intervals get a note under the table."""

DETAIL_COLUMNS = ["task", "encoder", "median", "lower quartile", "upper quartile", "mean", "95% ±", "time"]


@dataclass(frozen=True)
class Score:
    """A score in the first table. best: whether its interval lies above the intervals of all other encoders."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class ScoreRow:
    """A row of the first table."""

    name: str
    metric: str
    scores: list[Score]


def score_rows(content: dict[str, Any]) -> list[ScoreRow]:
    """Return the first table: a row for each part of the suite and one for the average, with a score per encoder."""
    labels = labels_of(content)
    rows = []
    for row in content["rows"]:
        cells = {label: content["scores"][label][row["name"]] for label in labels}
        rows.append(ScoreRow(row["name"], row["metric"], scores_of(cells)))

    counted = [row for row in content["rows"] if row["in_average"]]
    if len(counted) > 1:
        rows.append(ScoreRow(AVERAGE, f"of {len(counted)}", scores_of(content["averages"])))
    return rows


def scores_of(cells: dict[str, Cell | None]) -> list[Score]:
    """Return the scores of one row, given its cells by label."""
    best = best_label(cells)
    return [Score(text_of(cell), label == best) for label, cell in cells.items()]


def text_of(cell: Cell | None) -> str:
    """Return a mean as text, with the half-width of its interval if there are several values, and perhaps GUESSING."""
    if cell is None or cell["spread"] is None:
        return DASH

    text = f"{cell['spread']['mean']:.4f}"
    if len(cell["values"]) > 1:
        text += f" ± {cell['spread']['interval']:.4f}"
    return f"{text} {GUESSING}" if is_guessing(cell) else text


def is_guessing(cell: Cell) -> bool:
    """Return whether a mean is no better than the score of always predicting the most frequent label."""
    return cell["baseline"] is not None and cell["spread"]["mean"] <= cell["baseline"]


def detail_rows(content: dict[str, Any]) -> list[list[str]]:
    """Return the second table: median, quartiles, mean, interval and time of each task and encoder."""
    labels = labels_of(content)
    rows = []
    for row in content["rows"]:
        for label in labels:
            rows.append([row["name"], label, *details_of(content["scores"][label][row["name"]])])
    for label in labels:
        average = content["averages"][label]
        if average is not None:
            rows.append([AVERAGE, label, *details_of(average)])
    return rows


def details_of(cell: Cell) -> list[str]:
    """Return the columns of the second table after the first two."""
    if cell["spread"] is None:
        return [DASH] * 6
    names = ("median", "lower_quartile", "upper_quartile", "mean", "interval")
    values = [cell["spread"][name] for name in names]
    numbers = [DASH if value is None else f"{value:.4f}" for value in values]
    return [*numbers, time_of(cell)]


def time_of(cell: Cell) -> str:
    """Return the time that a cell's job took, such as "2 min 5 s"."""
    seconds = 3600 * cell["hours"]
    return duration(seconds) if seconds >= 1 else "< 1 s"


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


def phenomenon_rows(content: dict[str, Any]) -> list[list[str]]:
    """Return the accuracies on minimal pairs: a row per phenomenon with its name and one score per encoder."""
    labels = labels_of(content)
    names: list[tuple[str, str]] = []
    for label in labels:
        for part, phenomena in content["details"][label].items():
            names += [(part, phenomenon) for phenomenon in phenomena]

    rows = []
    for part, phenomenon in dict.fromkeys(names):
        found = [content["details"][label].get(part, {}).get(phenomenon) for label in labels]
        rows.append([f"{part}: {phenomenon}", *(DASH if value is None else f"{value:.4f}" for value in found)])
    return rows


def probe_rows(content: dict[str, Any]) -> list[list[str]]:
    """Return the scores of the linear probes, one per encoder: a row per layer, and one for the most frequent label."""
    probes = content["probes"]
    layers = max((len(probe["layers"]) for probe in probes.values()), default=0)
    rows = []
    for layer in range(layers):
        found = [probe["layers"][layer] if layer < len(probe["layers"]) else None for probe in probes.values()]
        rows.append([str(layer), *(DASH if value is None else f"{value:.4f}" for value in found)])

    if rows:
        baselines = [probe["baseline"]["score"] if "baseline" in probe else None for probe in probes.values()]
        rows.append([BASELINE, *(DASH if value is None else f"{value:.4f}" for value in baselines)])
    return rows


def probe_notes(content: dict[str, Any]) -> list[str]:
    """Return the sentences under the table of probes: how many examples each was fitted to and scored on."""
    examples = {label: probe["examples"] for label, probe in content["probes"].items() if "examples" in probe}
    if not examples:
        return []

    # Tokenizers divide long sentences differently, so encoders may be fitted to different numbers of examples.
    fitted = {label: fitted_examples(counts) for label, counts in examples.items()}
    dev = next(iter(examples.values()))["dev"]
    if len(set(fitted.values())) == 1:
        numbers = next(iter(fitted.values()))
    else:
        numbers = ", ".join(f"{number} ({label})" for label, number in fitted.items())
    return [
        f"Fitted to {numbers} training examples, and scored on the {dev:,} of the dev set. The row {BASELINE} is the "
        "score of always predicting the most frequent label of the training set."
    ]


def fitted_examples(counts: dict[str, int]) -> str:
    """Return the number of training examples that a probe was fitted to, and of how many if it is a sample."""
    if counts["fitted"] < counts["train"]:
        return f"{counts['fitted']:,} of {counts['train']:,}"
    return f"{counts['fitted']:,}"


def probe_title(content: dict[str, Any]) -> str:
    """Return the heading of the probes' table."""
    for probe in content["probes"].values():
        if probe["error"] is None:
            return f"Linear probe of each layer: {probe['task']}, {probe['metric']}"
    return "Linear probe of each layer"


def labels_of(content: dict[str, Any]) -> list[str]:
    """Return the labels of the encoders, in the order of the columns."""
    return [encoder["label"] for encoder in content["encoders"]]


def markdown(content: dict[str, Any]) -> str:
    """Return the text of table.md. content: that of results.json."""
    labels = labels_of(content)
    parts = [f"# {content['suite'] or 'Probe'}"]
    if content["rows"]:
        parts.append(legend(content))
        bodies = []
        for row in score_rows(content):
            scores = [f"**{score.text}**" if score.best else score.text for score in row.scores]
            bodies.append([row.name, row.metric, *scores])
        parts.append(markdown_table(["task", "metric", *labels], bodies))
        parts += notes(content)
        parts.append("## Quartiles and times")
        parts.append(markdown_table(DETAIL_COLUMNS, detail_rows(content)))

    if phenomenon_rows(content):
        parts += ["## Minimal pairs", markdown_table(["phenomenon", *labels], phenomenon_rows(content))]
    if probe_rows(content):
        parts += [f"## {probe_title(content)}", markdown_table(["layer", *labels], probe_rows(content))]
        parts += probe_notes(content)
    if error_lines(content):
        parts += ["## Not measured", "\n".join(f"- {line}" for line in error_lines(content))]
    return "\n\n".join(parts) + "\n"


def legend(content: dict[str, Any]) -> str:
    """Return the sentences that explain the first table."""
    seeds = content["seeds"]
    has_seeds = any(row["sets"] for row in content["rows"])
    if not has_seeds:
        return "Scores of minimal pairs, for which nothing is trained."
    if seeds == 1:
        return "Scores of a single seed. They say nothing about how much scores differ between seeds."
    text = f"Mean of {seeds} seeds ± half of its 95% interval."
    if len(labels_of(content)) > 1:
        text += " A score is bold where its interval lies above those of all others."
    return " ".join([text, *shared_encoders(content["rows"])])


def notes(content: dict[str, Any]) -> list[str]:
    """Return the sentences under the first table: on intervals of two or three seeds, and on scores of guessing."""
    sentences = []
    seeds = content["seeds"]
    has_intervals = any(row["sets"] for row in content["rows"]) and seeds > 1
    if has_intervals and seeds <= FEW_SEEDS:
        sentences.append(f"Intervals of {seeds} seeds say little: compare encoders with 5 seeds or more.")

    cells = [cell for of_encoder in content["scores"].values() for cell in of_encoder.values()]
    if any(cell["error"] is None and is_guessing(cell) for cell in cells):
        sentences.append(
            f"{GUESSING} No better than always predicting the most frequent label of the training set: nothing was "
            "learned. Try other training values; see docs/troubleshooting.md."
        )
    return sentences


def shared_encoders(rows: Sequence[dict[str, Any]]) -> list[str]:
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


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown. All columns after the first are right-aligned."""
    lines = [list(columns), ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
