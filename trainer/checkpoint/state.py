"""What a checkpoint stores besides tensors: the progress of a run, and the facts that a resume is checked against."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from trainer.anomaly import AnomalyHistory
from trainer.config.record import RecipeChange
from trainer.metrics.sums import Interval


class TrainingState(BaseModel):
    """The content of `state.json`.

    The position in the data is not stored: it follows from `step` and `skipped_batches`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Progress: steps completed, tokens trained on (without padding), and seconds spent training.
    step: int
    tokens: int
    seconds: float

    # What must be the same when the run resumes; see `identity` in identity.py.
    identity: dict[str, Any]

    # Updates that the optimizer has made. Lower than `step` if steps were skipped.
    updates: int = 0

    # Fields of the fp16 loss scaler, under DeepSpeed's names. Empty without fp16.
    loss_scale: dict[str, float] = {}

    # Batches of the current phase that rollbacks left out, because training failed on them.
    skipped_batches: int = 0

    # Recent losses and gradient norms, which later steps are compared with.
    anomaly: AnomalyHistory = AnomalyHistory()

    # Steps after which the run was resumed.
    resumed_at: list[int] = []

    # Sums since the last logged line, so that the next line equals that of an uninterrupted run.
    interval: Interval = Interval()

    # On a CPU, the threads of a rank, on which the last bits of losses depend, and its share of the cores.
    threads: int = 0
    cores: int = 0

    # With run.max_hours, the speed (trainer/hours.py) from which the number of steps follows, once that is fixed.
    speed: dict[str, float] = {}

    # Values of the recipe by full key, as in "optimizer.lr".
    recipe: dict[str, Any] = {}

    # Fingerprints of the pairs of earlier phases.
    earlier_data: list[str] = []

    # Pair folders, in the order of the fingerprints in `identity`.
    folders: list[str] = []

    # Every change of the recipe at any resume so far.
    changes: list[RecipeChange] = []


class FoundCheckpoint(NamedTuple):
    """The newest checkpoint that verifies, its state, and what is wrong with newer ones."""

    path: Path
    state: TrainingState
    faults: list[str]
