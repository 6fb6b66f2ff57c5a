"""Writes the results of a fine-tuning: predictions of each seed, scores of all seeds, the report and the best model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from schemas import storage
from trainer.finetune.data_facts import baseline_scores, data_facts, warn_of_guessing
from trainer.finetune.job import Job
from trainer.finetune.model_card import model_card
from trainer.finetune.output import MODEL_FOLDER, move_model
from trainer.finetune.report import write_report
from trainer.finetune.results import RESULTS_FILE, SeedResult, Spread, best_of, results_in, summary_of
from trainer.logs import logger
from trainer.metrics.presentation import keep_running


def write_predictions(folder: Path, name: str, job: Job, final: Sequence[Any]) -> None:
    """Write predictions_NAME.jsonl: the `id` and `prediction` of each example, in the order of the set.

    A label or a choice has its probability as `score`.

    final: predictions as `scores.finished` returns them.
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
    baseline = baseline_scores(job)
    content = {
        "task": job.task.name,
        "kind": job.task.kind,
        "metrics": list(job.task.metrics),
        "encoder": job.folder,
        "random_weights": job.random_weights,
        "data": data_facts(job),
        "baseline": baseline,
        "best_seed": best.seed,
        "summary": summary_of(results),
        "seeds": [asdict(result) for result in results],
    }

    write_best_model(job, best, baseline)
    with keep_running("report.html"):
        write_report(job.output, content)

    # Written last, because other commands take the existence of results.json as a sign that everything is complete.
    storage.publish(str(job.output / RESULTS_FILE), (json.dumps(content, indent=1) + "\n").encode())
    log_outcome(job, results)
    warn_of_guessing(job, best, baseline)


def write_best_model(job: Job, best: SeedResult, baseline: dict[str, dict[str, float]]) -> None:
    """Make the model of the best seed OUTPUT/hf, unless an earlier command has, and remove those of the other seeds."""
    folder = job.folder_of_seed(best.seed)
    if (folder / MODEL_FOLDER).is_dir():
        move_model(folder, job.output, model_card(job, best, baseline))

    # If a later command adds seeds, only a better seed replaces the model, so these are never needed again.
    for path in job.output.glob(f"seed-*/{MODEL_FOLDER}"):
        shutil.rmtree(path, ignore_errors=True)


def log_outcome(job: Job, results: list[SeedResult]) -> None:
    """Log the scores of all sets, and what was written."""
    for name, scores in summary_of(results).items():
        for metric, spread in scores.items():
            logger.info("%s %s %s: %s", job.task.name, name, metric, shown(spread, len(results)))

    best = best_of(results, job.task.metrics[0])
    if (job.output / MODEL_FOLDER).is_dir():
        logger.info("%s: results.json, report.html and hf (seed %d) are written.", job.output, best.seed)
        return
    logger.warning(
        "%s: results.json and report.html are written. hf was removed, and with it the only copy of the weights of "
        "seed %d: to train them again, remove %s and repeat the command.",
        job.output,
        best.seed,
        job.folder_of_seed(best.seed),
    )


def shown(spread: Spread, seeds: int) -> str:
    """Return a score as a log line shows it: the mean, and with several seeds the interval and the median."""
    if seeds == 1:
        return f"{spread['mean']:.4f}"
    return f"{spread['mean']:.4f} ± {spread['interval']:.4f} (95%, {seeds} seeds), median {spread['median']:.4f}"
