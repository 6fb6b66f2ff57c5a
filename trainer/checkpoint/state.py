"""What a checkpoint stores besides tensors: a run's progress and its identity.

The identity are the settings that must not change when a run resumes, because they determine rows, masks or weights.
The first step of a phase is a special case: data, masking and batch size belong to a phase, so only the settings of the
whole run (IDENTITY_OF_RUN) are compared there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from schemas.errors import CheckpointError
from trainer.checkpoint.format import STATE
from trainer.config.phases import MODEL_KEYS, Phase, phases_of
from trainer.config.record import RecipeChange, flatten, shown_value
from trainer.config.schema import Recipe
from trainer.config.sections import START_KEYS
from trainer.metrics.sums import Interval

if TYPE_CHECKING:
    from trainer.data.folder import PairFolder  # loads torch


class AnomalyHistory(BaseModel):
    """The record that steps are judged against. Every checkpoint stores it.

    losses, norms: of the last good steps, at most `anomaly.window` of them, oldest first.
    consecutive_skips: steps without an update since the last good one. skipped: all steps without an update. Neither
    counts fp16 overflows, which dynamic loss scaling expects.
    """

    losses: list[float] = []
    norms: list[float] = []
    consecutive_skips: int = 0
    skipped: int = 0

    def add(self, loss: float, norm: float, window: int) -> None:
        """Add a step that made an update, and forget steps older than `window`."""
        self.losses = [*self.losses, loss][-window:]
        self.norms = [*self.norms, norm][-window:]
        self.consecutive_skips = 0

    def skip(self) -> None:
        """Count a step that made no update."""
        self.consecutive_skips += 1
        self.skipped += 1


class TrainingState(BaseModel):
    """The content of `state.json`.

    The position in the data is not stored: it follows from `step` and `skipped_batches`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Progress: steps completed, tokens trained on (without padding), and seconds spent training.
    step: int
    tokens: int
    seconds: float

    # What must be the same when the run resumes; see `identity`.
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

    # On a GPU, the kernel of attention with dropout or within windows (trainer/attention_choice.py). With dropout,
    # another one drops other weights.
    attention: str = ""

    # With run.max_hours, the speed (trainer/length.py) from which the number of steps follows, once that is fixed.
    speed: dict[str, float] = {}

    # Values of the recipe by full key, as in "optimizer.lr".
    recipe: dict[str, Any] = {}

    # Fingerprints of the pairs of earlier phases.
    earlier_data: list[str] = []

    # Pair folders, in the order of the fingerprints in `identity`.
    folders: list[str] = []

    # Every change of the recipe at any resume so far.
    changes: list[RecipeChange] = []


# The identity

IDENTITY_OF_RUN = ("vocabulary", "seed", "model", "optimizer", "statistics")
"""The entries of an identity that hold for the whole run; the others belong to a phase."""

_RECIPE_NAMES = {
    "weights": "data.weights",
    "vocabulary": "the vocabulary of data.pairs",
    "seed": "run.seed",
    "statistics": "data.statistics",
    "optimizer": "optimizer.kind",
    "global_batch": "batch.global_batch or batch.global_tokens",
    "batch_ramp": "batch.ramp_from and batch.ramp_steps",
    "steps_before": "the first step of this phase",
    "objective": "objective.kind",
    "phase_model": "the phase's model",
}
"""The recipe's names for entries of an identity. `model` and `masking` are sections of the recipe with these names."""


def identity(recipe: Recipe, phase: Phase, folders: list[PairFolder]) -> dict[str, Any]:
    """Return what must not change during a run: the settings that determine rows, masks or weights.

    recipe: of the whole run. folders: of the phase's pairs.
    """
    return {
        "data": [folder.manifest.fingerprint for folder in folders],
        "weights": phase.recipe.data.weights,
        "vocabulary": folders[0].vocabulary.fingerprint,
        **_identity_of_recipe(recipe, phase),
    }


def _identity_of_recipe(recipe: Recipe, phase: Phase) -> dict[str, Any]:
    of_phase = phase.recipe.model.model_dump(include=set(MODEL_KEYS))
    of_run = recipe.model.model_dump(include=set(MODEL_KEYS))
    batch = phase.recipe.batch
    return {
        "seed": recipe.run.seed,
        "model": recipe.model.model_dump(exclude_none=True, exclude={*START_KEYS, "vocab_size"}),
        "phase_model": {name: value for name, value in of_phase.items() if value != of_run[name]},
        "objective": phase.recipe.objective.kind,
        "optimizer": phase.recipe.optimizer.kind,
        "masking": phase.recipe.masking.model_dump(),
        "global_batch": batch.size,
        "batch_ramp": [batch.ramp_from, batch.ramp_steps] if batch.ramp_from is not None else None,
        "steps_before": phase.steps_before,
    }


def check_recipe(path: Path, state: TrainingState, recipe: Recipe) -> None:
    """Compare what is known before any data is opened with the checkpoint of a run: the first thing in a resume.

    Of a run with several phases, that is the model and the seed. Raises CheckpointError as `check_unchanged` does.
    """
    first, *further = phases_of(recipe)
    now = _identity_of_recipe(recipe, first)
    names = list(now) if state.step > 0 and not further else ["seed", "model"]
    check_identity(path, _by_recipe_key(state.identity, names), _by_recipe_key(now, names))


def check_unchanged(
    path: Path,
    state: TrainingState,
    now: dict[str, Any],
    folders: list[str],
    names: tuple[str, ...],
) -> None:
    """Compare entries of a checkpoint's identity with those of this run.

    path: the checkpoint. now: this run's identity. folders: this run's pair folders. names: the entries to compare.
    Raises CheckpointError that shows both values of each key that differs, and for data the folders and fingerprints.
    """
    saved_data = state.identity.get("data")
    if "data" in names and saved_data != now["data"]:
        before = _data_text(state.folders, saved_data or [])
        after = _data_text(folders, now["data"])
        raise CheckpointError(
            f"{path} was trained on other data: data.pairs was {before}, is {after}. Put the data back, continue with "
            "other data in a further phase ([[phases]]), or start a new run with another run.output."
        )

    others = [name for name in names if name != "data"]
    check_identity(path, _by_recipe_key(state.identity, others), _by_recipe_key(now, others))


def _by_recipe_key(values: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the named entries of an identity, flattened, under the recipe's names for them."""
    renamed: dict[str, Any] = {}
    for name in names:
        value = values.get(name)
        if value is not None:
            renamed[_RECIPE_NAMES.get(name, name)] = value
    return flatten(renamed)


def _data_text(folders: list[str], fingerprints: list[str]) -> str:
    pairs = zip(folders, fingerprints, strict=True)
    return ", ".join(f"{folder} (fingerprint {fingerprint})" for folder, fingerprint in pairs)


def check_identity(path: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise CheckpointError, listing every difference, unless a run's settings are those that it began with.

    saved, now: values by full key. path: the checkpoint.
    """
    differences = [
        f"{name} was {shown_value(saved.get(name))}, is {shown_value(now.get(name))}"
        for name in sorted({*saved, *now})
        if saved.get(name) != now.get(name)
    ]
    if differences:
        raise CheckpointError(
            f"{path} belongs to a run with other settings: {'; '.join(differences)}. "
            "Put them back, or start a new run with another run.output."
        )


def read_state(path: Path) -> TrainingState:
    """Return a checkpoint's state. Raises CheckpointError if state.json is missing or is not valid in this version."""
    try:
        return TrainingState.model_validate_json((path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path / STATE} is not a state of this version: {error}. Resume with the version that wrote it."
        ) from error
