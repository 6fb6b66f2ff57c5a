"""The last lines of `clozeline start`: the held-out loss, blanks filled in, the pages, and what is next."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from clozeline.start.plan_file import Values, holds_out
from schemas import progress
from schemas.manifest import open_manifest
from schemas.terminal import counted, padded
from trainer.metrics.log import read_metrics

FEW_HELD_OUT = 20  # documents

PAGES = (
    ("text/card.html", "what became of the files"),
    ("pairs/card.html", "what the model was trained on"),
    ("run/report.html", "how the training went"),
)


def closing_lines(output: str, plan: Values, exported: Sequence[str], is_new: bool) -> Iterator[str]:
    """Yield what came out: the held-out loss, blanks filled in the user's own text, the pages, and what is next.

    exported: the words of the export's command after its name. is_new: False if all steps were done before.
    """
    yield ""
    logged = read_metrics(os.path.join(output, "run"))
    found = next((line for line in reversed(logged) if "eval_mlm_loss" in line), {})
    loss = found.get("eval_mlm_loss_masked", found.get("eval_mlm_loss"))
    if loss is not None:
        line = f"Loss on held-out documents: {loss:.2f} nats per blank"
        if "eval_unigram_loss" in found:
            line += f"; word frequencies alone give {found['eval_unigram_loss']:.2f}"
        if "eval_mlm_accuracy_masked" in found:
            line += f". {found['eval_mlm_accuracy_masked']:.0%} of blanks are filled in exactly"
        documents = open_manifest(os.path.join(output, "text_heldout")).totals.get("documents", 0)
        yield f"{line}."
        if documents < FEW_HELD_OUT:
            yield f"That is a rough figure, of only {counted(documents, 'held-out document')}."
    elif not holds_out(plan):
        yield "No documents were held out ([shard] holdout), so nothing shows how the model does on other text."

    hf = os.path.join(output, "hf")
    text = os.path.join(output, "text_heldout" if holds_out(plan) else "text")
    known = [] if is_new else _filled_before(os.path.join(output, "run"))
    yield from filled_lines(known) if known else _fill_in(text, exported)

    yield ""
    for name, what in PAGES:
        if os.path.exists(os.path.join(output, name)):
            yield f"  {padded(os.path.join(output, name), 28)} {what}"
    yield f"  {padded(hf, 28)} the model, for transformers' from_pretrained"
    yield "Next:"
    pairs, run, task = (shlex.quote(os.path.join(output, name)) for name in ("pairs", "run", "task"))
    yield f"  clozeline inspect {pairs} --rows 3"
    yield f"  clozeline report {run} ANOTHER/run    two runs on one page"
    yield f"  clozeline finetune {shlex.quote(hf)} --task TASK.toml --output {task}"
    again = shlex.join(["clozeline", "start", str(plan["start"].get("folder", "FOLDER")), "--output", output])
    yield f"  change {os.path.join(output, 'clozeline.toml')} (run.max_hours, size, filters), and then:"
    yield f"  {again}"


def _fill_in(text: str, exported: Sequence[str]) -> Iterator[str]:
    blanks = [sys.executable, "-m", "clozeline.start.blanks", text, *exported]
    progress.doing("filling in blanks")
    done = subprocess.run(blanks, capture_output=True, text=True, check=False)
    progress.end()
    yield from done.stdout.splitlines()
    if done.returncode:
        yield f"The blanks could not be filled in: {(done.stderr.strip().splitlines() or ['?'])[-1]}"


def _filled_before(run: str) -> list[list[str]]:
    try:
        return json.loads(Path(run, "blanks.json").read_text(encoding="utf-8"))["filled"]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def filled_lines(filled: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield sentences with filled-in blanks and their words; the first is that of word frequencies alone."""
    for number, (sentence, words) in enumerate(filled):
        if number == 1 and "____ (" in sentence:
            yield "The word in parentheses was hidden from the model:"
        yield from (sentence, f"    {words}")
