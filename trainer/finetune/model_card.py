"""Writes the model card (README.md) of a fine-tuned folder: how to load it, what it scores, how it was trained.

The folder may be published, so its card holds no paths. The text is in templates/model_card.md.jinja.
"""

from __future__ import annotations

import tomli_w

from schemas.pages import render_markdown
from trainer.finetune.data_facts import data_facts
from trainer.finetune.job import Job
from trainer.finetune.opening import read_config
from trainer.finetune.results import SeedResult

PIPELINES = {
    "sentence": "text-classification",
    "pair": "text-classification",
    "tags": "token-classification",
    "span": "question-answering",
    "choice": "multiple-choice",
}
"""What the Hugging Face Hub calls each kind of task."""


def model_card(job: Job, best: SeedResult, baseline: dict[str, dict[str, float]]) -> str:
    """Return the card, as Markdown.

    best: the result of the seed whose weights the folder has. baseline: scores of always predicting the most frequent
    label, by set and then by metric.
    """
    facts = data_facts(job)
    values = job.task.model_dump(include={"training", "trainer"}, exclude_none=True)
    return render_markdown(
        "trainer.finetune",
        "model_card.md.jinja",
        task=job.task,
        family=read_config(job.folder).model_type,
        random_weights=job.random_weights,
        model_class=job.kind.model_class,
        pipeline=PIPELINES[job.task.kind],
        best=best,
        scores=rows_of_scores(best, facts["examples"], baseline),
        has_baseline=bool(baseline),
        labels=[(in_cell(label), count) for label, count in facts["labels"].items()],
        training=tomli_w.dumps({name: table for name, table in values.items() if table}).strip(),
    )


def rows_of_scores(
    best: SeedResult, examples: dict[str, int], baseline: dict[str, dict[str, float]]
) -> list[list[str]]:
    """Return a row for each set and metric: set, examples, metric, score, and the baseline's score if there is one."""
    rows = []
    for name, scores in best.scores.items():
        for metric, score in scores.items():
            row = [in_cell(name), f"{examples[name]:,}", metric, f"{score:.4f}"]
            if baseline:
                row.append(f"{baseline[name][metric]:.4f}")
            rows.append(row)
    return rows


def in_cell(text: str) -> str:
    """Return a text as a cell of a table shows it: a "|" or a line break would end the cell."""
    return " ".join(text.replace("|", "\\|").split())
