"""README.md of an exported folder: what the model is, how to load it, what it was trained on, how and how far."""

from __future__ import annotations

from pathlib import Path

from trainer.checkpoints import read_state
from trainer.metrics import read_metrics
from trainer.models.huggingface import ARCHITECTURES
from trainer.recipe_sections import Recipe
from trainer.recipe_text import dump_recipe

PLACES = ("pairs", "vocab", "cache", "output", "init_from")
"""Keys of a recipe that hold paths of the machine it ran on: nobody else's business."""
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
"""


def model_card(run: str, checkpoint: Path, recipe: Recipe) -> str:
    """The card of one checkpoint of a run. Raises CheckpointError when its state cannot be read."""
    state = read_state(checkpoint)
    return CARD.format(
        family=recipe.model.family,
        layers=recipe.model.layers,
        width=recipe.model.width,
        step=state.step,
        max_steps=recipe.run.max_steps,
        tokens=state.tokens,
        architecture=ARCHITECTURES[recipe.model.family],
        data=data_table(state.identity),
        metrics=metrics_table(run, state.step),
        recipe=public_recipe(recipe),
    )


def data_table(identity: dict) -> str:
    """Fingerprints of the pairs and of their vocabulary: equal content, equal fingerprint."""
    pairs = [f"| pairs | `{fingerprint}` |" for fingerprint in identity["data"]]
    return "\n".join(["| | fingerprint |", "|---|---|", *pairs, f"| vocabulary | `{identity['vocabulary']}` |"])


def metrics_table(run: str, step: int) -> str:
    """The last line logged up to a step."""
    lines = [line for line in read_metrics(run) if line["step"] <= step]
    if not lines:
        return "None were logged."
    rows = [f"| {name} | {lines[-1][name]:.4g} |" for name in SHOWN if lines[-1].get(name) is not None]
    return "\n".join([f"| at step {lines[-1]['step']:,} | |", "|---|---|", *rows])


def public_recipe(recipe: Recipe) -> str:
    """The recipe without the places of its files."""
    lines = dump_recipe(recipe).strip().split("\n")
    return "\n".join(line for line in lines if line.split(" = ")[0] not in PLACES)
