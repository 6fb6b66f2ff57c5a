"""What came out of all steps: the held-out loss, blanks filled in from the user's own text, the pages, what is next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from clozeline.start.plan_file import Values, holds_out

PAGES = (
    ("text/card.html", "what became of the files"),
    ("pairs/card.html", "what the model was trained on"),
    ("run/report.html", "how the training went"),
)


def closing_lines(output: str, plan: Values) -> Iterator[str]:
    """Yield the lines."""
    yield ""
    found = _last_evaluation(os.path.join(output, "run", "metrics.jsonl"))
    loss = found.get("eval_mlm_loss_masked", found.get("eval_mlm_loss"))
    if loss is not None:
        line = f"Loss on held-out documents: {loss:.2f} nats a blank"
        if "eval_unigram_loss" in found:
            line += f"; word frequencies alone have {found['eval_unigram_loss']:.2f}"
        yield f"{line}."
    elif not holds_out(plan):
        yield "No documents were held out ([shard] holdout), so nothing shows how the model does on other text."

    hf = os.path.join(output, "hf")
    text = os.path.join(output, "text_heldout" if holds_out(plan) else "text")
    blanks = [sys.executable, "-m", "clozeline.start.blanks", hf, os.path.join(output, "run"), text]
    yield from subprocess.run(blanks, capture_output=True, text=True, check=False).stdout.splitlines()

    yield ""
    for name, what in PAGES:
        if os.path.exists(os.path.join(output, name)):
            yield f"  {os.path.join(output, name):<28} {what}"
    yield f"  {hf:<28} the model, for transformers' from_pretrained"
    yield "Next:"
    yield f"  clozeline inspect {os.path.join(output, 'pairs')} --rows 3"
    yield f"  clozeline finetune {hf} --task TASK.toml --output {os.path.join(output, 'task')}"
    yield f"  change {os.path.join(output, 'clozeline.toml')} (run.max_hours, size, filters), and repeat the command"


def _last_evaluation(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
    except OSError:
        return {}
    return next((line for line in reversed(lines) if "eval_mlm_loss" in line), {})
