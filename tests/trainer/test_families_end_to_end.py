"""Each newer family from training to transformers: killed, resumed on other ranks, exported, and opened there."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from trainer.checkpoint.format import checkpoint_path
from trainer.export.convert import export

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

    assert largest_difference(lines_of(broken), lines_of(tmp_path / "whole")) <= LARGEST_RELATIVE_DIFFERENCE
    assert "(checked, to " in export(str(broken), str(tmp_path / "hf"), None)


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
