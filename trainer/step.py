"""One training step that never waits for its own results: they reach the host while the next step is computed.

A GPU stays busy only if the host runs ahead of it. Reading a value of the step in progress would end that lead, because
the host would wait until the device has computed it. So nothing on the host depends on a step's own values:

- its counts are summed over all ranks together with the sums of the step before, and stay on the device;
- whether its update is made is decided on the device (trainer/anomaly.py);
- the copy of its sums, its gradient norm and that decision to the host starts after the update, and is read one step
  later (`settle`), long after it has arrived. This is a step's only read, but for fp16, in which DeepSpeed reads more.
  Only a step with a save or an evaluation is read at once.

The order of the calls in step k:

    compute   forward and backward passes over the rank's micro-batches
    exchange  one all-reduce: the sums of step k, and the counts of step k + 1
    settle    read step k - 1: from now on the host knows whether it made an update, and can log it
    update    gradient norm, decision, optimizer; then start the copy to the host that the next `settle` reads

The loss of a step is

    sum(masked-token losses) / (masked tokens of the global batch) + sum(pair losses) / (labeled pairs of the same)
    + rtd_weight * sum(losses of replaced-token detection) / (tokens of the same)

Every model has the first term, and at most one of the other two; rtd_weight is model.discriminator_weight. Since all
counts are those of the global batch, the loss depends neither on the number of ranks nor on how the batch is divided
into micro-batches.

Dropout is seeded by (seed, step, rank), so no random state has to be saved.

A step can end between two micro-batches: after a stop signal there may be no time to finish a long one
(trainer/distributed/stop.py).

On the device, the sums of a step are one float64 vector, and its counts another one: the fields of Sums
(trainer/metrics/sums.py) that a step has, in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from trainer.anomaly import AnomalyGuard
from trainer.distributed.deepspeed_internals import norms_stay_on_device
from trainer.engine import gradient_divisor
from trainer.metrics.sums import StepResult, Sums, check_any_predicted
from trainer.models.batch import PackedBatch
from trainer.models.pretraining import SUMS, PretrainingModel


@dataclass
class StepInProgress:
    """What a step has computed so far, on the device.

    loss_sums: this rank's sums, and after `exchange` those of all ranks. counts: of the global batch.
    """

    step: int
    loss_sums: Tensor
    counts: Tensor


class HostCopy:
    """A copy of a device's tensor in pinned host memory, made in the background. On a CPU, a plain copy."""

    def __init__(self, values_N: Tensor):
        """Queue the copy on the current stream, after the work that is already queued. values_N: one-dimensional."""
        self._arrival: torch.Event | None = None
        if values_N.device.type == "cpu":
            self._host_N = values_N.clone()
            return

        self._host_N = torch.empty(values_N.shape, dtype=values_N.dtype, pin_memory=True)
        self._host_N.copy_(values_N, non_blocking=True)
        self._arrival = torch.Event(values_N.device)
        self._arrival.record()

    def read(self) -> list[float]:
        """Wait for the copy and return its values."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._host_N.tolist()


@dataclass(frozen=True)
class UnsettledStep:
    """A step whose update was started and whose results are not read yet.

    values: its sums, counts, gradient norm and whether it was bad. was_judged: as in `Verdict`.
    """

    step: int
    values: HostCopy
    was_judged: bool


class Stepper:
    """Takes the steps of one phase, in the order that the module's docstring gives. All calls are collective."""

    def __init__(self, engine: DeepSpeedEngine, guard: AnomalyGuard):
        self._engine = engine
        self._guard = guard
        model: Any = engine.module
        self._rtd_weight: float = model.shape.rtd_weight

        # The global counts of the next step; the step in progress; and the step before it, which is not read yet.
        self._next_counts: Tensor | None = None
        self._step: StepInProgress | None = None
        self._unsettled: UnsettledStep | None = None

    def compute(self, step: int, micro_batches: list[PackedBatch], leaves_step: Callable[[], bool]) -> bool:
        """Compute the gradient of this rank's micro-batches. Returns False if the ranks abandoned the step.

        `leaves_step` is called before each micro-batch and returns whether to abandon the step there. Gradients of
        part of the batch then remain, so the engine may be saved but must not take another step.
        """
        counts = self._take_counts(micro_batches)
        loss_sums = torch.zeros(SUMS, dtype=torch.float64, device=counts.device)

        # The loss of a micro-batch is divided by the counts of the global batch, so the step's gradient is the sum of
        # all micro-batches' gradients, on all ranks. DeepSpeed averages them; multiplying by its divisor undoes that.
        gradient_scale = gradient_divisor(self._engine)
        masked, pairs, tokens = counts[:3].clamp(min=1).float()

        for index, micro_batch in enumerate(micro_batches):
            if leaves_step():
                return False

            # All but the last engine.step() only count the micro-batch; the last one is in `update`.
            if index > 0:
                self._engine.step()
            # DeepSpeed expects every step to have the same number, but the first batches of a phase may have fewer.
            self._engine.set_gradient_accumulation_boundary(index == len(micro_batches) - 1)
            losses = self._engine(micro_batch)
            loss = losses.mlm_sum / masked + losses.pair_sum / pairs
            if losses.rtd_sum is not None:
                loss = loss + self._rtd_weight * losses.rtd_sum / tokens
            self._engine.backward(loss * gradient_scale)
            loss_sums += losses.stacked()

        self._step = StepInProgress(step, loss_sums, counts)
        return True

    def exchange(self, next_micro_batches: list[PackedBatch] | None) -> None:
        """Sum the losses of the step in progress and the counts of the next one over all ranks.

        next_micro_batches: this rank's, or None if they are not known yet. Their counts are then exchanged when that
        step begins.
        """
        step = self._in_progress()
        totals = torch.cat([step.loss_sums, count_batch(self._engine, next_micro_batches or [])])
        dist.all_reduce(totals)

        step.loss_sums = totals[:SUMS]
        if next_micro_batches is not None:
            self._next_counts = totals[SUMS:]

    def settle(self) -> StepResult | None:
        """Return what the last updated step computed; None if that was returned already.

        Raises DataError on all ranks if its global batch had nothing to predict.
        """
        unsettled = self._unsettled
        if unsettled is None:
            return None
        self._unsettled = None

        values = unsettled.values.read()
        sums = Sums(*values[:-2])
        norm, bad = values[-2:]
        check_any_predicted(
            sums,
            f"The batch of step {unsettled.step} has no masked token: its rows hold only unknown words, or their "
            "stored masks are empty. Use a vocabulary that covers the text, or rebuild the pairs.",
        )

        loss = sums.loss(self._rtd_weight)
        fault = self._guard.settle(loss, norm, bool(bad), unsettled.was_judged)
        return StepResult(unsettled.step, sums, loss, norm, fault, self._rtd_weight)

    def update(self) -> None:
        """Update the weights, unless the step is bad, and start copying the step's values to the host."""
        step = self._in_progress()
        self._step = None

        # Nothing is read from the device here, so these are tensors.
        masked, pairs, tokens = step.counts[:3].clamp(min=1)
        mlm_sum, _, pair_sum, _, rtd_sum, *_ = step.loss_sums
        self._guard.expect(mlm_sum / masked + pair_sum / pairs + self._rtd_weight * (rtd_sum / tokens))
        with norms_stay_on_device(self._engine):
            self._engine.step()

        verdict = self._guard.verdict()
        values = torch.cat([step.loss_sums, step.counts, torch.stack([verdict.norm, verdict.bad])])
        self._unsettled = UnsettledStep(step.step, HostCopy(values), verdict.was_judged)

    def _take_counts(self, micro_batches: list[PackedBatch]) -> Tensor:
        """Return the global counts of a batch, which `exchange` has summed, or this method in a phase's first step."""
        counts = self._next_counts
        self._next_counts = None
        if counts is None:
            counts = count_batch(self._engine, micro_batches)
            dist.all_reduce(counts)
        return counts

    def _in_progress(self) -> StepInProgress:
        assert self._step is not None, "call `compute` first"
        return self._step


def count_batch(engine: DeepSpeedEngine, micro_batches: list[PackedBatch]) -> Tensor:
    """Return the counts of this rank's micro-batches, (4,) float64 on its device, in the order of `Sums`."""
    model: Any = engine.module
    return to_device(host_counts(model, micro_batches), torch.device(engine.device or "cpu"))


def host_counts(model: PretrainingModel, micro_batches: list[PackedBatch]) -> Tensor:
    """Return the counts of micro-batches, (4,) float64 on the host, in the order of `Sums`."""
    counts = [
        sum(micro_batch.predicted for micro_batch in micro_batches),
        sum(model.labeled_pairs(micro_batch) for micro_batch in micro_batches),
        sum(micro_batch.tokens for micro_batch in micro_batches),
        sum(len(micro_batch.ids_T) for micro_batch in micro_batches),
    ]
    # float64 holds counts exactly up to 2 ** 53, float32 only up to 2 ** 24.
    return torch.tensor(counts, dtype=torch.float64)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy host values to a device through pinned memory, so that the host does not wait for the copy."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


def seed_dropout(seed: int) -> None:
    """Seed torch on the CPU and on this rank's device.

    torch.manual_seed does the same but probes for devices of every kind, which takes half a millisecond per step.
    """
    torch.default_generator.manual_seed(seed)

    accelerator: Any = get_accelerator()
    if accelerator.device_name() != "cpu":
        accelerator.manual_seed(seed)
