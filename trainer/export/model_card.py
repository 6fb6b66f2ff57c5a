"""Writes the model card of an export (README.md): what the model is, how to load it, and how it was trained.

An export may be published, so its card holds no paths and no accounts of the run. The text is in
templates/model_card.md.jinja.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from schemas.pages import render_markdown
from schemas.text_facts import TextFacts
from trainer.checkpoint.state import read_state
from trainer.checkpoint.text_facts import read_text_facts
from trainer.config.record import public_changes, public_recipe, shown_value
from trainer.config.schema import Recipe
from trainer.export.request import Writing
from trainer.logs import logger
from trainer.metrics.log import Figures, is_evaluation, read_lines, skipped_note
from trainer.metrics.sums import REPLACED_TOKEN_NAMES
from trainer.models.families import FAMILIES
from trainer.models.hf_config import ARCHITECTURES, AUTO_CLASSES

TEMPLATE = "model_card.md.jinja"
PIPELINES = {"AutoModelForCausalLM": "text-generation"}
"""transformers' pipelines other than fill-mask, by the Auto class of the family."""

LANGUAGE_CODE = re.compile("[a-z]{2,3}")
"""ISO 639, which the Hub knows languages by."""

SHOWN = ("loss", "mlm_loss", "mlm_accuracy", "pair_loss", "pair_accuracy", *REPLACED_TOKEN_NAMES, "tokens_per_second")
"""The training metrics on the card, in order."""

SHOWN_OF_EVALUATIONS = (
    "eval_mlm_loss",
    "eval_mlm_loss_masked",
    "eval_mlm_accuracy",
    "eval_unigram_loss",
    "eval_pair_loss",
    "eval_pair_accuracy",
    *(f"eval_{name}" for name in REPLACED_TOKEN_NAMES),
)
"""The metrics of held-out pairs on the card, in order. eval_unigram_loss is the loss of word frequencies alone."""


@dataclass(frozen=True)
class LastMetrics:
    """The last metrics logged up to a step, or a note that says why there are none.

    step: of the training metrics, `figures`. evaluated: the step of the last evaluation up to then; 0 if there is none.
    """

    step: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    evaluated: int = 0
    held_out: dict[str, float] = field(default_factory=dict)
    note: str = ""


def model_card(
    run: str, checkpoint: Path, recipe: Recipe, averaged: Sequence[int] = (), writing: Writing | None = None
) -> str:
    """Return the card, as Markdown, of one checkpoint of a run. Raises CheckpointError if its state cannot be read.

    run: the local folder. averaged: the steps whose weights were averaged; empty if only the checkpoint's are exported.
    """
    writing = writing or Writing()
    state = read_state(checkpoint)
    # Fingerprints identify the content that the model was trained on without naming a path.
    pairs = list(dict.fromkeys([*state.earlier_data, *state.identity["data"]]))
    texts = texts_of(run, pairs)
    return render_markdown(
        "trainer.export",
        TEMPLATE,
        family=recipe.model.family,
        layers=recipe.model.num_hidden_layers,
        width=recipe.model.hidden_size,
        architecture=ARCHITECTURES[recipe.model.family],
        has_generator=FAMILIES[recipe.model.family].replaced_tokens,
        has_pair_head=FAMILIES[recipe.model.family].pair_head,
        pipeline=PIPELINES.get(AUTO_CLASSES[recipe.model.family], "fill-mask"),
        step=state.step,
        averaged=averaged,
        max_steps=recipe.run.max_steps,
        tokens=state.tokens,
        origin=origin_of(recipe),
        texts=texts,
        languages=languages_of(texts),
        writing=writing,
        versions=versions(),
        cell=cell,
        pairs_fingerprints=pairs,
        vocabulary_fingerprint=state.identity["vocabulary"],
        metrics=last_metrics(run, state.step),
        recipe=public_recipe(recipe),
        changes=public_changes(state.changes),
        shown=shown_value,
    )


def origin_of(recipe: Recipe) -> str:
    """Return the name of the folder whose weights the run began with, without its path; empty for random weights."""
    source = recipe.model.init_from or recipe.model.tile_from or ""
    return source.rstrip("/").rpartition("/")[2]


def texts_of(run: str, pairs: Sequence[str]) -> list[TextFacts]:
    """Return what is known about the text of these pairs (fingerprints), each text once, in their order."""
    known = read_text_facts(run)
    found = [known[fingerprint] for fingerprint in pairs if fingerprint in known]
    return list({facts.fingerprint: facts for facts in found}.values())


def languages_of(texts: Sequence[TextFacts]) -> list[str]:
    """Return the codes of the languages that texts were made in, or that at least 1% of their documents have."""
    found: dict[str, None] = {}
    for text in texts:
        if text.language != "auto":
            found[text.language] = None
        found |= {name: None for name, documents in text.languages if 100 * documents >= text.documents}
    return [name for name in found if LANGUAGE_CODE.fullmatch(name)]


def versions() -> dict[str, str]:
    """Return the installed versions of what writes an export, by package."""
    found = {}
    for package in ("clozeline", "torch", "transformers", "tokenizers"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def cell(text: str) -> str:
    """Return any text as it can stand in a cell of a table in Markdown."""
    return html.escape(" ".join(text.split()), quote=False).replace("\\", "\\\\").replace("|", "\\|")


def last_metrics(run: str, step: int) -> LastMetrics:
    """Return the last metrics logged up to a step, or a note if there are none or the file is unreadable."""
    try:
        lines, skipped = read_lines(run)
    except OSError as error:
        return LastMetrics(note=f"The metrics could not be read: {error.strerror}.")
    if skipped:
        logger.info("%s", skipped_note(run, skipped))

    lines = [line for line in reversed(lines) if line["step"] <= step]
    if not lines:
        return LastMetrics(note="None were logged.")

    trained = next((line for line in lines if not is_evaluation(line)), {})
    evaluation = next((line for line in lines if is_evaluation(line)), {})
    held_out = _present(evaluation, SHOWN_OF_EVALUATIONS)
    return LastMetrics((trained or evaluation)["step"], _present(trained, SHOWN), evaluation.get("step", 0), held_out)


def _present(line: Figures, names: Sequence[str]) -> dict[str, float]:
    """Return those of the named metrics that a line has a number for, in the order of the names."""
    return {name: number for name in names if (number := line.get(name)) is not None}
