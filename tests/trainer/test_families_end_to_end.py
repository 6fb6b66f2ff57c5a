"""Each newer family from training to transformers: killed, resumed on other ranks, exported, and opened there."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoTokenizer, pipeline

from schemas.vocabulary import read_vocabulary
from trainer.checkpoint.format import checkpoint_path
from trainer.config.load import load_recipe
from trainer.export.convert import export, read_model
from trainer.export.verify import logit_pairs, one_row_batch
from trainer.models.electra import PartModel, parts_of
from trainer.models.hf_config import AUTO_CLASSES

STEPS = 50
KILLED_AFTER = 25
LARGEST_RELATIVE_DIFFERENCE = 2e-5
"""Of losses: ranks sum in another order, and 50 steps make the rounding of float32 larger."""

ALBERT: dict[str, object] = {"model__family": "albert", "model__embedding_size": 16}
LAYERS: dict[str, object] = {"model__num_hidden_layers": 2}
"""Each with other weights, unless the case has more or shares them."""

CASES: dict[str, dict[str, object]] = {
    "modernbert": {"model__family": "modernbert", "model__num_hidden_layers": 3, "model__window": 6},
    "eurobert": {"model__family": "eurobert", "model__num_key_value_heads": 2},
    "esm": {"model__family": "esm"},
    "nomic_bert": {"model__family": "nomic_bert"},
    "gte": {"model__family": "gte"},
    "electra": {"model__family": "electra", "model__embedding_size": 16, "model__generator_size": 0.5},
    "xlnet": {"model__family": "xlnet", "masking__kind": "ngram"},
    "albert, all shared": ALBERT,
    "albert, attention shared": ALBERT | {"model__sharing": "attention"},
    "albert, feed-forward shared": ALBERT | {"model__sharing": "feed_forward"},
}
WITHOUT_DROPOUT = {"model__hidden_dropout_prob": 0.0, "model__attention_probs_dropout_prob": 0.0}
"""Dropout is drawn per rank."""


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_continues_on_another_number_of_ranks(training, case: str, tmp_path: Path) -> None:
    """Two ranks of a launcher, killed without warning, then one: the losses of all steps, and the export."""
    changes = LAYERS | CASES[case] | WITHOUT_DROPOUT | {"run__max_steps": STEPS, "checkpoint__every": 10}
    training.trained(2, tmp_path / "whole", **changes)

    broken = tmp_path / "broken"
    kill_after_step(training.start("deepspeed", broken, **changes), broken)
    assert not (checkpoint_path(str(broken), STEPS) / "manifest.json").exists()

    resumed = training.warm(1, broken, **changes)
    assert resumed.returncode == 0 and "Resuming from" in resumed.stdout, resumed.stderr

    largest = largest_difference(lines_of(broken), lines_of(tmp_path / "whole"))
    scores = check_export(broken, tmp_path / "hf")
    print(f"figures | {case} | {largest:.1e} | {scores:.1e} |")
    assert largest <= LARGEST_RELATIVE_DIFFERENCE


def kill_after_step(process: Any, run: Path) -> None:
    """Send SIGKILL to a launcher and all its ranks once step KILLED_AFTER is in the metrics."""
    deadline = time.monotonic() + 500
    while not (run / "metrics.jsonl").exists() or len(lines_of(run)) < KILLED_AFTER:
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def lines_of(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without a line that is still being written."""
    whole_lines = (run / "metrics.jsonl").read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole_lines.splitlines()]


def largest_difference(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> float:
    """Return the largest relative difference between any losses of two runs, which must have all steps."""
    steps = list(range(1, STEPS + 1))
    assert [line["step"] for line in found] == steps and [line["step"] for line in expected] == steps

    differences = []
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["tokens"] == theirs["tokens"]
        for name, loss in theirs.items():
            if name.endswith("loss") and loss is not None:
                differences.append(abs(ours[name] - loss) / abs(loss))
    assert len(differences) >= 2 * STEPS, "each step has the loss and at least one that it is made of"
    return max(differences)


def check_export(run: Path, hf: Path) -> float:
    """Export a run, open each of its parts by the Auto class, and return the largest difference of scores.

    No tensor may be missing, unexpected or of another shape. Fill-mask must answer with the trainer's best token.
    """
    export(str(run), str(hf), None)
    recipe = load_recipe(str(run / "recipe.toml"), [])
    vocabulary = read_vocabulary(str(run / "vocabulary"))
    model = read_model(checkpoint_path(str(run), recipe.run.max_steps), recipe, vocabulary)

    differences = [difference_of_part(part, hf / subfolder) for subfolder, part in parts_of(model).items()]
    assert max(differences) < 1e-5, differences
    return max(differences)


@torch.inference_mode()
def difference_of_part(part: PartModel, folder: Path) -> float:
    """Return the largest absolute difference of transformers' scores from ours."""
    shape = part.shape
    auto_class = getattr(transformers, AUTO_CLASSES[shape.family])
    theirs, told = auto_class.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    theirs.eval()

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = f"The cat sees the {tokenizer.mask_token} as always."
    inputs = tokenizer(text, return_tensors="pt")
    ids_T = inputs["input_ids"][0]
    batch = one_row_batch(ids_T, 1)
    if shape.two_streams:
        both = logit_pairs(theirs, part, batch)  # type: ignore[arg-type]
        assert len(both) == 2, "the content stream and the query stream"
        return max(float((found - ours).abs().max()) for found, ours in both)

    scores = theirs(**inputs).to_tuple()[0][0]
    ours, _ = part.logits(batch)
    if AUTO_CLASSES[shape.family] == "AutoModelForMaskedLM" or shape.family == "albert":
        filler = transformers.AutoModelForMaskedLM.from_pretrained(folder)
        best = pipeline("fill-mask", model=filler, tokenizer=tokenizer, top_k=1)(text)[0]
        place = ids_T.tolist().index(tokenizer.mask_token_id)
        assert best["token"] == int(ours[place].argmax())
    return float((scores - ours).abs().max())
