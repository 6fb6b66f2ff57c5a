"""README.md of an exported folder: what the model is, how to load it, what it was trained on, how and how far."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from trainer.checkpoint.layout import read_state
from trainer.config.changes import RecipeChange, shown
from trainer.config.public import changes_without_paths, changes_without_secrets, without_paths, without_secrets
from trainer.config.schema import Recipe
from trainer.metrics.log import read_lines, skipped_note
from trainer.models.hf_convert import ARCHITECTURES

SHOWN = ("loss", "mlm_loss", "mlm_accuracy", "pair_loss", "pair_accuracy", "tokens_per_second")

CARD = """\
---
library_name: transformers
pipeline_tag: fill-mask
tags:
- {family}
- masked-lm
---

# {family}, {layers} layers of {width}

Pretrained with Clozeline for {step:,} of {max_steps:,} steps on {tokens:,} tokens.

```python
from transformers import AutoTokenizer, {architecture}

model = {architecture}.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```

## Data

{data}

## Last metrics

{metrics}

## Recipe

```toml
{recipe}
```
{changes}"""


def model_card(run: str, checkpoint: Path, recipe: Recipe) -> str:
    """The card of one checkpoint of a run. Raises CheckpointError when its state cannot be read."""
    state = read_state(checkpoint)
    return CARD.format(
        family=recipe.model.family,
        layers=recipe.model.num_hidden_layers,
        width=recipe.model.hidden_size,
        step=state.step,
        max_steps=recipe.run.max_steps,
        tokens=state.tokens,
        architecture=ARCHITECTURES[recipe.model.family],
        data=data_table(state.identity),
        metrics=metrics_table(run, state.step),
        recipe=public_recipe(recipe),
        changes=changes_table(state.changes),
    )


def data_table(identity: dict) -> str:
    """Fingerprints of the pairs and of their vocabulary: equal content, equal fingerprint."""
    pairs = [f"| pairs | `{fingerprint}` |" for fingerprint in identity["data"]]
    return "\n".join(["| | fingerprint |", "|---|---|", *pairs, f"| vocabulary | `{identity['vocabulary']}` |"])


def metrics_table(run: str, step: int) -> str:
    """Return the last line logged up to a step; a sentence when there is none or the file cannot be read."""
    try:
        lines, skipped = read_lines(run)
    except OSError as error:
        return f"The metrics could not be read: {error.strerror}."
    if skipped:
        print(skipped_note(run, skipped), flush=True)

    lines = [line for line in lines if line["step"] <= step]
    if not lines:
        return "None were logged."
    rows = [f"| {name} | {lines[-1][name]:.4g} |" for name in SHOWN if lines[-1].get(name) is not None]
    return "\n".join([f"| at step {lines[-1]['step']:,} | |", "|---|---|", *rows])


def public_recipe(recipe: Recipe) -> str:
    """Return the recipe as TOML without secrets and without the places of its files."""
    content = without_paths(without_secrets(recipe.model_dump(exclude_none=True)))
    return tomli_w.dumps(content).strip()


def changes_table(changes: list[RecipeChange]) -> str:
    """Return a section about how the recipe changed at resumes, without secrets and places; nothing if it did not."""
    public = changes_without_paths(changes_without_secrets(changes))
    if not public:
        return ""
    rows = [
        f"| {change.step + 1:,} | {change.key} | {shown(change.before)} | {shown(change.now)} |" for change in public
    ]
    head = "The recipe above is the last one. It changed when the run was resumed:"
    return "\n".join(["", head, "", "| from step | key | was | is |", "|---|---|---|---|", *rows, ""])
