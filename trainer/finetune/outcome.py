"""Writes the results of a fine-tuning: predictions of each seed, scores of all seeds, the report and the best model.

The report is laid out by templates/finetune.html, and the model card by templates/model_card.md.jinja. The best model
may be published, so its card holds no paths.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w
from huggingface_hub import metadata_load

from schemas import storage
from schemas.charts import COLORS, Chart, Line, chart, short
from schemas.pages import render, render_markdown
from trainer.export.model_card import cell
from trainer.finetune.data_facts import (
    baseline_scores,
    data_facts,
    shared_sentences,
    shown_labels,
    unlabeled_sentences,
    warn_of_guessing,
)
from trainer.finetune.inputs import write_json
from trainer.finetune.job import Job
from trainer.finetune.model import MODEL_FOLDER
from trainer.finetune.opening import read_config
from trainer.finetune.results import (
    RESULTS_FILE,
    STATISTICS,
    SeedResult,
    Spread,
    best_of,
    results_in,
    summary_of,
    with_interval,
)
from trainer.finetune.task import DEV, TEST
from trainer.finetune.task_file import dump_task
from trainer.logs import logger
from trainer.metrics.presentation import duration, keep_running, shown_path

REPORT_FILE = "report.html"


def write_predictions(folder: Path, name: str, job: Job, final: Sequence[Any]) -> None:
    """Write predictions_NAME.jsonl: the `id` and `prediction` of each example, in the order of the set.

    A label or a choice has its probability as `score`.

    final: predictions as `Kind.final` returns them.
    """
    lines = []
    for example, prediction in zip(job.others[name].examples, final, strict=True):
        line = {"id": example.id, "prediction": job.kind.written(prediction)}
        probability = job.kind.probability(prediction)
        if probability is not None:
            line["score"] = probability
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    storage.publish(str(folder / f"predictions_{name}.jsonl"), "".join(lines).encode(), durable=False)


def write_outcome(job: Job) -> None:
    """Write OUTPUT/hf, report.html and results.json, and remove the models of the seeds.

    All finished seeds count, including those of earlier commands, so hf always holds the best of them.
    """
    results = results_in(job.output)
    best = best_of(results, job.task.metrics[0])
    content = {
        "task": job.task.name,
        "kind": job.task.kind,
        "metrics": list(job.task.metrics),
        "encoder": job.folder,
        "random_weights": job.random_weights,
        "data": data_facts(job),
        "baseline": baseline_scores(job),
        "best_seed": best.seed,
        "summary": summary_of(results),
        "seeds": [asdict(result) for result in results],
    }

    folder = job.folder_of_seed(best.seed)
    if (folder / MODEL_FOLDER).is_dir():
        (folder / MODEL_FOLDER / "README.md").write_text(model_card(job, best, content), encoding="utf-8")
        shutil.rmtree(job.output / MODEL_FOLDER, ignore_errors=True)
        os.replace(folder / MODEL_FOLDER, job.output / MODEL_FOLDER)
    # If a later command adds seeds, only a better seed replaces the model, so those of other seeds are never needed.
    for path in job.output.glob(f"seed-*/{MODEL_FOLDER}"):
        shutil.rmtree(path, ignore_errors=True)

    with keep_running(REPORT_FILE):
        page = report(content, dump_task(job.task))
        storage.publish(str(job.output / REPORT_FILE), page.encode(), durable=False)

    # Written last, because other commands take the existence of results.json as a sign that everything is complete.
    write_json(job.output / RESULTS_FILE, content)
    log_outcome(job, results)
    warn_of_guessing(job, best, content["baseline"])


def log_outcome(job: Job, results: list[SeedResult]) -> None:
    for name, scores in summary_of(results).items():
        for metric, spread in scores.items():
            logger.info("%s %s %s: %s", job.task.name, name, metric, shown(spread, len(results)))

    best = best_of(results, job.task.metrics[0])
    hf = f"hf has seed {best.seed}" if (job.output / MODEL_FOLDER).is_dir() else "hf was removed"
    logger.info("%s: results.json and report.html are written; %s.", job.output, hf)


def shown(spread: Spread, seeds: int) -> str:
    """Return a score as a log line shows it: the mean, and with several seeds their number and the median."""
    mean = with_interval(spread)
    if seeds == 1:
        return mean
    level = "" if spread["interval"] is None else "95%, "
    return f"{mean} ({level}{seeds} seeds), median {spread['median']:.4f}"


# ---- The report ----


def report(results: dict[str, Any], task: str) -> str:
    """Return the page. results: the content of results.json. task: the task file's text."""
    main, seeds, data = results["metrics"][0], results["seeds"], results["data"]
    drawn = [
        chart_of("Loss on the training set, mean of each epoch", seeds, "loss"),
        chart_of(f"Dev set: {main} after each epoch", seeds, main),
    ]

    return render(
        "trainer.finetune",
        "finetune.html",
        title=results["task"],
        results=results,
        encoder=shown_path(results["encoder"]),
        figures=figures(results),
        scores=table_of_scores(results),
        notes=shared_sentences(data) + unlabeled_sentences(data),
        sets=[[name, f"{size:,}", shown_files(data, name)] for name, size in data["examples"].items()],
        labels=shown_labels(data["labels"]),
        charts=[chart for chart in drawn if chart is not None],
        seeds=[
            [seed["seed"], seed["epoch"], f"{seed['scores'][DEV][main]:.4f}", duration(seed["seconds"])]
            for seed in seeds
        ],
        task=task,
    )


def figures(results: dict[str, Any]) -> dict[str, str]:
    main, seeds = results["metrics"][0], results["seeds"]

    # The dev set has chosen the best epoch, so the score on the test set, if it has labels, says more of new text.
    names = [name for name in (TEST, DEV) if name in results["summary"]]
    scores = {f"{main}, {name}": with_interval(results["summary"][name][main]) for name in names}
    return scores | {"seeds": str(len(seeds)), "time": duration(sum(seed["seconds"] for seed in seeds))}


def table_of_scores(results: dict[str, Any]) -> list[list[str]]:
    """Return the columns, then a row for each set and metric: STATISTICS, and the baseline's score if there is one.

    Where no score has an interval, the median and the quartiles say no more than the mean, which then stands alone.
    """
    summary, baseline = results["summary"], results["baseline"]
    spreads = [spread for scores in summary.values() for spread in scores.values()]
    columns = STATISTICS if any(spread["interval"] is not None for spread in spreads) else {"mean": "mean"}

    rows = [["set", "metric", *columns, *(["always the most frequent label"] if baseline else [])]]
    for name, scores in summary.items():
        for metric, spread in scores.items():
            values = [spread[key] for key in columns.values()] + ([baseline[name][metric]] if baseline else [])
            rows.append([name, metric, *("-" if value is None else f"{value:.4f}" for value in values)])
    return rows


def shown_files(data: dict[str, Any], name: str) -> str:
    return ", ".join(shown_path(path) for path in data["files"][name])


def chart_of(title: str, seeds: list[dict[str, Any]], name: str) -> Chart | None:
    lines = []
    for number, seed in enumerate(seeds):
        points = [(int(epoch["step"]), float(epoch[name])) for epoch in seed["epochs"]]
        lines.append(Line(f"seed {seed['seed']}", COLORS[number % len(COLORS)], points))

    last_step = int(seeds[0]["epochs"][-1]["step"])
    return chart(title, lines, last_step, [], short)


# ---- The model card ----


def model_card(job: Job, best: SeedResult, results: dict[str, Any]) -> str:
    """Return the card of the seed with the best result, as Markdown. results: the content of results.json."""
    values = job.task.model_dump(include={"training", "trainer"}, exclude_none=True)
    return render_markdown(
        "trainer.finetune",
        "model_card.md.jinja",
        task=job.task,
        family=read_config(job.folder).model_type,
        name=shown_path(str(job.output / MODEL_FOLDER)),
        encoder=shown_path(job.folder),
        header={} if job.random_weights else header_of(job.folder),
        model_class=job.kind.model_class,
        pipeline=job.kind.pipeline,
        best=best,
        results=results,
        notes=shared_sentences(results["data"]) + unlabeled_sentences(results["data"]),
        labels=[(cell(label), count) for label, count in results["data"]["labels"].items()],
        training=tomli_w.dumps({name: table for name, table in values.items() if table}).strip(),
    )


def header_of(folder: str) -> dict[str, Any]:
    """Return `language` and `license` of the card of an encoder, as far as it has them."""
    try:
        header = metadata_load(Path(folder, "README.md")) or {}
    except Exception:  # no card, or one whose YAML the Hub would not read either
        return {}
    found = {key: header[key] for key in ("language", "license") if isinstance(header.get(key), str | list)}
    return {key: value if isinstance(value, str) else [str(one) for one in value] for key, value in found.items()}
