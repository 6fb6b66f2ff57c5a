"""The run: make ready, resume where the last checkpoint is, step, log, save.

The loss of a step is summed over the whole global batch and divided by its number of masked tokens (and of rows, for
the pair loss), so the gradient depends neither on the ranks nor on how a batch was cut into micro-batches. Dropout is
seeded by (seed, step, rank), so nothing random has to be saved.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from schemas import storage
from schemas.errors import PreemptedError
from schemas.randomness import key
from schemas.vocabulary import FOLDER
from trainer import checkpoints, saving
from trainer.beginning import first_model, tokens_at_peak
from trainer.checkpoints import TrainingState
from trainer.engine import build_engine, device_of_rank, share_of, start_distributed
from trainer.evaluation import Evaluation, open_evaluation
from trainer.metrics import Meter, Metrics
from trainer.models.packing import PackedBatch
from trainer.recipe import Recipe, dump_recipe
from trainer.report import write_report
from trainer.schedules import learning_rate, set_learning_rate
from trainer.signals import StopRequest
from trainer.stream.batches import Share, Stream
from trainer.stream.building import build_stream, open_folders
from trainer.stream.reading import PairFolder


@dataclass
class Step:
    """What one step summed over all ranks: losses, counts and tokens. stop: a rank was asked to stop."""

    loss: float
    mlm_loss: float
    mlm_accuracy: float
    pair_loss: float | None
    pair_accuracy: float | None
    tokens: int
    padding_fraction: float
    stop: bool


def pretrain(recipe: Recipe, stop: StopRequest) -> None:
    """Run a recipe from its newest checkpoint, or from the start, to run.stop_at or run.max_steps.

    Raises PreemptedError on every rank, once all is saved, when one of them was asked to stop.
    """
    rank, world_size = start_distributed()
    share = share_of(recipe, rank, world_size)
    folders = open_folders(recipe)
    stream = build_stream(recipe, folders, share, device_of_rank())
    evaluation = open_evaluation(recipe, folders, share)
    engine = build_engine(first_model(recipe, folders, rank), recipe, share)
    state = resume(engine, recipe, folders, share)
    metrics = open_run(recipe, folders, state, world_size) if rank == 0 else None
    try:
        train(engine, stream, evaluation, recipe, state, metrics, stop)
    finally:
        stream.close()
        if evaluation is not None:
            evaluation.close()
        if metrics is not None:
            metrics.close()


def identity(recipe: Recipe, folders: list[PairFolder]) -> dict[str, Any]:
    """What may not change under a run: anything here decides rows, masks or weights."""
    return {
        "data": [folder.manifest.fingerprint for folder in folders],
        "weights": recipe.data.weights,
        "vocabulary": folders[0].vocabulary.fingerprint,
        "seed": recipe.run.seed,
        "model": recipe.model.model_dump(exclude_none=True, exclude={"init_from", "vocabulary"}),
        "optimizer": recipe.optimizer.kind,
        "masking": recipe.masking.model_dump(),
        "global_batch": recipe.batch.size,
    }


def resume(engine: DeepSpeedEngine, recipe: Recipe, folders: list[PairFolder], share: Share) -> TrainingState:
    """The state to go on from, its weights loaded; a fresh state when the run holds no checkpoint."""
    now = identity(recipe, folders)
    found = saving.find(recipe.run.output)
    if found is None:
        return TrainingState(step=0, tokens=0, seconds=0.0, identity=now)
    path, state, faults = found
    checkpoints.check_identity(path, state.identity, now)
    saving.load(engine, path, state)
    if share.rank == 0:
        unit = "row" if recipe.batch.global_tokens is None else "token"
        for fault in faults:
            print(f"Passed over a checkpoint: {fault}.", flush=True)
        print(f"Resuming from {path}: step {state.step}, {unit} {state.step * share.size:,}.", flush=True)
    return state.model_copy(update={"resumed_at": [*state.resumed_at, state.step]})


def open_run(recipe: Recipe, folders: list[PairFolder], state: TrainingState, world_size: int) -> Metrics:
    """The run folder: the recipe as resolved, a copy of the vocabulary, the metrics up to the state."""
    run = Path(recipe.run.output)
    storage.publish(str(run / "recipe.toml"), dump_recipe(recipe).encode())
    source = storage.join(folders[0].folder, FOLDER)
    for name in storage.names(source):
        storage.publish(str(run / FOLDER / name), storage.read(storage.join(source, name)))
    checkpoints.remove_partial(recipe.run.output)
    return Metrics(recipe.run.output, state.step, recipe.run.max_steps, tokens_at_peak(recipe, folders, world_size))


def train(
    engine: DeepSpeedEngine,
    stream: Stream,
    evaluation: Evaluation | None,
    recipe: Recipe,
    state: TrainingState,
    metrics: Metrics | None,
    stop: StopRequest,
) -> None:
    """Step from `state` to the end, saving every checkpoint.every steps, at the end, and when asked to stop."""
    run, last = recipe.run, min(recipe.run.stop_at or recipe.run.max_steps, recipe.run.max_steps)
    meter = Meter(state.tokens, state.seconds)
    for step in range(state.step + 1, last + 1):
        rate = learning_rate(step, recipe.optimizer, recipe.schedule, run.max_steps)
        set_learning_rate(engine.optimizer, rate)
        dropout_key = key(run.seed, "dropout", step, dist.get_rank())
        done = take_step(engine, stream.batch(step - 1), dropout_key, stop.asked)
        meter.add(done.tokens)
        evaluated = evaluation.measure(engine) if evaluation is not None and evaluation.due(step) else {}
        meter.skip(evaluated.get("eval_seconds") or 0.0)
        if metrics is not None:
            metrics.advance()
            if evaluated or step == 1 or step % run.log_every == 0 or step == run.max_steps:
                grad_norm = float(engine.get_global_grad_norm() or 0.0)
                values = asdict(done) | {"step": step, "lr": rate, "grad_norm": grad_norm} | meter.read(stream.stalled)
                metrics.log(values | evaluated)
        if step % recipe.checkpoint.every == 0 or step == last or done.stop:
            now = TrainingState(
                step=step,
                tokens=meter.tokens,
                seconds=meter.seconds,
                identity=state.identity,
                resumed_at=state.resumed_at,
                eval_mlm_loss=evaluated.get("eval_mlm_loss"),
            )
            saving.save(engine, run.output, now, recipe.checkpoint.keep)
            if metrics is not None:
                write_report(run.output, state.resumed_at)
        if done.stop and step < last:
            raise PreemptedError(
                f"{run.output}: asked to stop; step {step} of {run.max_steps} is saved. The same command goes on."
            )
    if dist.get_rank() == 0:
        print(f"{run.output}: step {max(last, state.step)} of {run.max_steps} is saved.", flush=True)


def take_step(engine: DeepSpeedEngine, batches: list[PackedBatch], dropout_key: int, stop: bool) -> Step:
    """One update from this rank's micro-batches; what it returns is summed over all ranks.

    `stop` travels with the counts: every rank learns of a signal in the same step, for nothing.
    """
    device = torch.device(engine.device or "cpu")
    counts = torch.tensor(
        [
            sum(batch.predicted for batch in batches),
            sum(engine.module.labelled_pairs(batch) for batch in batches),  # type: ignore[operator]
            sum(batch.tokens for batch in batches),
            sum(len(batch.ids_T) for batch in batches),
            float(stop),
        ],
        dtype=torch.float64,
    ).to(device)
    dist.all_reduce(counts)
    masked, pairs, tokens, computed, stopping = counts.tolist()
    torch.manual_seed(dropout_key >> 1)  # torch takes 63 bits
    # DeepSpeed averages over ranks and micro-batches; the loss is a sum over both
    scale = dist.get_world_size() * len(batches)
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    for batch in batches:
        losses = engine(batch)
        engine.backward((losses.mlm_sum / masked + losses.pair_sum / max(pairs, 1)) * scale)
        engine.step()
        sums += torch.stack(list(losses)).detach().double()
    dist.all_reduce(sums)
    mlm_sum, mlm_correct, pair_sum, pair_correct = sums.tolist()
    return Step(
        loss=mlm_sum / masked + pair_sum / max(pairs, 1),
        mlm_loss=mlm_sum / masked,
        mlm_accuracy=mlm_correct / masked,
        pair_loss=pair_sum / pairs if pairs else None,
        pair_accuracy=pair_correct / pairs if pairs else None,
        tokens=int(tokens),
        padding_fraction=1 - tokens / computed,
        stop=stopping > 0,
    )
