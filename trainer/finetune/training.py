"""Trains one seed: takes its steps, scores the dev set after each epoch, and keeps the weights of the best epoch.

Every random choice is a function of the seed, the step or epoch, and the rank, so training that is stopped at any step
and resumed with the same number of ranks gives the same result as training without a stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from schemas.errors import PreemptedError
from schemas.randomness import key
from trainer.distributed.collectives import run_on_rank_0, succeed_on_all_ranks
from trainer.finetune.batches import Batch, training_batches
from trainer.finetune.determinism import with_deterministic_kernels
from trainer.finetune.evaluation import DivergedError, autocast, predict
from trainer.finetune.gradients import add_up_gradients
from trainer.finetune.job import DEV, Job
from trainer.finetune.kinds.kind import Feature
from trainer.finetune.model import build_model, log_head
from trainer.finetune.optimizer import build_optimizer, set_rate
from trainer.finetune.scores import finished, score
from trainer.finetune.seed_files import STATE_FOLDER, remove_weights, save_weights, weights_of_epoch, write_metrics
from trainer.finetune.seed_state import load_state, read_state, save_state
from trainer.logs import logger
from trainer.metrics.presentation import duration

MAX_GRADIENT_NORM = 1.0

SECONDS_BETWEEN_LINES = 30.0
"""Seconds between two lines of progress within an epoch."""


class SeedTraining:
    """The training of one seed, which starts from the seed's newest saved state if there is one."""

    def __init__(self, job: Job, seed: int):
        """Build the model and the optimizer, and load the newest state into them. A collective call."""
        self.job = job
        self.seed = seed
        self.folder = job.folder_of_seed(seed)
        if not (job.random_weights or job.new_head):
            log_head(job.folder, job.task, job.kind)
        model = succeed_on_all_ranks(
            lambda: build_model(job.folder, job.task, job.kind, seed, job.random_weights, job.new_head)
        )
        self.model = model.to(job.device)
        self.optimizer = build_optimizer(self.model, job.task.training)

        state = run_on_rank_0(lambda: read_state(self.folder / STATE_FOLDER))
        self.progress = load_state(state, self.model, self.optimizer)

        self.steps_an_epoch = -(-len(job.train.features) // job.task.training.batch)
        self.steps = self.steps_an_epoch * job.task.training.epochs
        own_sum = own_share(self.progress.loss_sums)
        self._loss_sum = torch.tensor(own_sum, dtype=torch.float64, device=job.device)
        self._started = self._last_line = perf_counter()
        self._examples_since_line = 0
        self._step_loss = torch.zeros((), device=job.device)

    def train(self) -> None:
        """Train to the last step. A collective call.

        If any rank was asked to stop, saves a state and raises PreemptedError. Raises DivergedError for a loss that is
        not finite.
        """
        if 0 < self.progress.step < self.steps:
            logger.info("Seed %d continues at step %d of %d.", self.seed, self.progress.step, self.steps)

        while self.progress.step < self.steps:
            epoch, first = divmod(self.progress.step, self.steps_an_epoch)
            for batch in self._batches(epoch)[first:]:
                self._stop_if_asked()
                self._take_step([self.job.train.features[number] for number in batch])
                self._log_and_save(epoch)
            self._end_epoch(epoch)

    def load_best(self) -> Any:
        """Return the model with the weights of the best epoch. A collective call."""
        assert self.progress.best is not None
        path = weights_of_epoch(self.folder, self.progress.best)
        self.model.load_state_dict(run_on_rank_0(lambda: torch.load(path, map_location="cpu", weights_only=True)))
        return self.model

    # ---- Steps ----

    def _batches(self, epoch: int) -> list[Batch]:
        """Return all batches of an epoch, the same ones on every rank."""
        training = self.job.task.training
        return training_batches(self.job.train.features, training.batch, self.seed, epoch, training.group_by_length)

    def _take_step(self, features: Sequence[Feature]) -> None:
        """Update the weights with one batch. Each rank computes the gradients of its part of the batch."""
        training = self.job.task.training
        step = self.progress.step + 1
        self.job.watchdog.at(f"seed {self.seed}, step {step}")

        rank, ranks = dist.get_rank(), dist.get_world_size()
        own = features[rank::ranks]
        weight = sum(self.job.kind.weight(feature) for feature in features)
        self.model.train()
        if own:
            loss_sum = with_deterministic_kernels(
                lambda: self._loss_with_gradients(own, weight, dropout_seed(self.seed, step, rank))
            )
            self._loss_sum += loss_sum
            own_weight = sum(self.job.kind.weight(feature) for feature in own)
            self._step_loss = loss_sum / max(own_weight, 1)

        add_up_gradients(self.model)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        set_rate(self.optimizer, step, self.steps, training.warmup_ratio)
        self.optimizer.step()
        self.optimizer.zero_grad()

        self.progress.step = step
        self.progress.loss_weight += weight
        self._examples_since_line += len(features)

    def _loss_with_gradients(self, features: Sequence[Feature], weight: int, seed: int) -> Tensor:
        """Return the sum of the losses of some features, and set the weights' gradients to those of the sum / weight.

        weight: the weight of the whole batch. The gradients summed over all ranks are those of its mean loss.
        seed: for dropout. It depends on the step and the rank, so dropout does not depend on where training resumed.
        """
        self.optimizer.zero_grad()  # an earlier call may have ended in the middle of its backward pass
        torch.manual_seed(seed)
        loss_sum = self._loss_of(features)
        (loss_sum / max(weight, 1)).backward()
        return loss_sum.detach()

    def _loss_of(self, features: Sequence[Feature]) -> Tensor:
        """Return the sum of the losses of some features, a float32 scalar."""
        kind = self.job.kind
        columns = {name: values.to(self.job.device) for name, values in kind.batch(features).items()}
        with autocast(self.job.device, self.job.task.training.precision):
            output = self.model(**columns)
        return kind.loss_sum(output, features)

    def _log_and_save(self, epoch: int) -> None:
        """Log the progress every SECONDS_BETWEEN_LINES seconds, and save a state every `save_every` steps.

        The last step of an epoch saves nothing here, because `_end_epoch` saves a state.
        """
        step = self.progress.step
        if perf_counter() - self._last_line > SECONDS_BETWEEN_LINES:
            self._log_progress(epoch)
        if step % self.job.task.training.save_every == 0 and step % self.steps_an_epoch != 0:
            self._save()

    def _log_progress(self, epoch: int) -> None:
        """Log the step, its loss on this rank's part of the batch, and the speed since the last line."""
        loss = float(self._step_loss)
        speed = self._examples_since_line / (perf_counter() - self._last_line)
        logger.info(
            "seed %d, epoch %d of %d: step %d of %d, loss %.4f, %.1f examples per second, about %s left",
            self.seed,
            epoch + 1,
            self.job.task.training.epochs,
            self.progress.step,
            self.steps,
            loss,
            speed,
            duration((self.steps - self.progress.step) * self.job.task.training.batch / speed),
        )
        self._restart_line()

    def _restart_line(self) -> None:
        self._last_line = perf_counter()
        self._examples_since_line = 0

    def _stop_if_asked(self) -> None:
        """Save a state and raise PreemptedError on all ranks if any of them was asked to stop. A collective call."""
        if not self.job.stop.leaves_step():
            return
        self._save()
        error = PreemptedError(
            f"stopped in seed {self.seed} after step {self.progress.step} of {self.steps}, which is saved. The same "
            "command continues."
        )
        error.everywhere = True
        raise error

    def _save(self) -> None:
        """Save a state. A collective call. Raises DivergedError on all ranks if the loss is not finite."""
        self._read_loss()
        self.progress.seconds += perf_counter() - self._started
        self._started = perf_counter()
        run_on_rank_0(lambda: save_state(self.folder / STATE_FOLDER, self.progress, self.model, self.optimizer))

    def _read_loss(self) -> None:
        """Copy the loss sum of each rank into the progress. A collective call.

        The sums stay separate until the epoch ends, so that rounding does not depend on when states are saved.
        Raises DivergedError on all ranks if the loss is not finite.
        """
        sums: list[float] = [0.0] * dist.get_world_size()
        dist.all_gather_object(sums, float(self._loss_sum))
        if not isfinite(sum(sums)):
            raise DivergedError(
                f"the loss of seed {self.seed} is {sum(sums)} at step {self.progress.step}. Lower training.lr, which "
                f"is {self.job.task.training.lr}, or raise training.warmup_ratio."
            )
        self.progress.loss_sums = sums

    # ---- Epochs ----

    def _end_epoch(self, epoch: int) -> None:
        """Score the dev set, keep the weights if they are the best so far, and save a state. A collective call."""
        self._read_loss()
        progress = self.progress
        scores = self._scores_of_dev()
        main = self.job.task.metrics[0]
        is_best = progress.best is None or scores[main] > progress.epochs[progress.best][main]

        loss = sum(progress.loss_sums) / max(progress.loss_weight, 1)
        progress.epochs.append({"epoch": epoch + 1, "step": progress.step, "loss": loss, **scores})
        progress.loss_weight = 0
        self._loss_sum.zero_()
        if is_best:
            progress.best = epoch
            run_on_rank_0(lambda: save_weights(self.model, self.folder, epoch))

        shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        logger.info(
            "seed %d, epoch %d of %d: loss %.4f, dev %s%s",
            self.seed,
            epoch + 1,
            self.job.task.training.epochs,
            loss,
            shown,
            " (best)" if is_best else "",
        )
        self._save()
        self._restart_line()
        run_on_rank_0(lambda: remove_weights(self.folder, but_of_epoch=progress.best))
        run_on_rank_0(lambda: write_metrics(self.folder, progress))

    def _scores_of_dev(self) -> dict[str, float]:
        examples = self.job.others[DEV]
        predictions = predict(self.model, self.job.kind, examples, self.job.watchdog.progress)
        final = finished(predictions, self.job.threshold(predictions))
        return score(self.job.kind, examples.examples, final)


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of torch's generator for the dropout masks of a step, counted from 1, on a rank."""
    return key("finetune", "dropout", seed, step, rank) >> 1


def own_share(sums: Sequence[float]) -> float:
    """Return the loss sum with which this rank resumes, given the saved sums of all ranks.

    If the number of ranks has changed, rank 0 takes the total and the others start at 0.
    """
    if len(sums) == dist.get_world_size():
        return sums[dist.get_rank()]
    return sum(sums) if dist.get_rank() == 0 else 0.0
