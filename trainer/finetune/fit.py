"""Trains one seed with transformers' Trainer, and adds what Trainer does not have.

Trainer computes the losses, takes the steps, saves and resumes. On its own it is wrong in three places, measured with
transformers 5.23, so pyproject.toml bounds its version:

- Batches of similar length are drawn from torch's global state, so a run that resumes after its first epoch sees other
  batches than one that was never stopped. `SeededBatches` depends on the seed and the epoch alone.
- A kill while a checkpoint is written leaves a folder that Trainer takes for the newest checkpoint, and keeps while it
  removes a complete one. A damaged one it continues from with other results. checkpoints.py seals and checks them.
- Most models take any keyword and ignore the number of labels that Trainer passes, so with the arguments' defaults two
  ranks double their losses and gradients, and accumulated batches add up instead of being averaged.
  `model_accepts_loss_kwargs` is set to False, as it is for models without keywords.

Also added: layer-wise rates, choices of different numbers, predictions in the order of the examples, a stop that all
ranks agree on, and errors in one line.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import chain
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch.utils.data import Sampler, Subset
from transformers import PrinterCallback, Trainer
from transformers.trainer_pt_utils import get_length_grouped_indices

from schemas.errors import StorageError, UsageError
from schemas.urls import advice_on_limit
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0, succeed_on_all_ranks
from trainer.finetune.checkpoints import fault_of, keep_newest, newest_sound, seal
from trainer.finetune.determinism import choose_kernels
from trainer.finetune.job import FeatureSet, Job
from trainer.finetune.kinds.kind import TARGETS
from trainer.finetune.kinds.text import CHOICES, loss_of_choices
from trainer.finetune.opening import first_line, quiet_transformers
from trainer.finetune.results import write_metrics
from trainer.finetune.scores import score
from trainer.finetune.seed_events import SeedEvents, diverged
from trainer.finetune.task import DEV
from trainer.logs import logger

LAYER = re.compile(r"^.*?\.(?:layers?|h|blocks)\.\d+(?:\.\d+)?\.")
"""Matches the part of a parameter's name that names its layer, in transformers' models.

Examples: `bert.encoder.layer.3.`, `model.layers.3.`, and `funnel.encoder.blocks.1.0.`, the first layer of a block.
"""


class SeededBatches(Sampler):
    """The order of a training set: batches of similar length by transformers' rule, or random ones.

    It depends on the seed and the epoch alone. Random batches are those of Trainer, which adds them as well.
    """

    def __init__(self, lengths: list[int], batch: int, seed: int, group_by_length: bool):
        self.lengths = lengths
        self.batch = batch
        self.seed = seed
        self.group_by_length = group_by_length
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        random = torch.Generator().manual_seed(self.seed + self.epoch)
        if not self.group_by_length:
            return iter(torch.randperm(len(self), generator=random).tolist())

        grouped = get_length_grouped_indices(self.lengths, self.batch, generator=random)
        batches = [grouped[start : start + self.batch] for start in range(0, len(grouped), self.batch)]

        # Without this, training would go through each group from its longest features to its shortest. A short batch
        # stays the last one, because a loader cuts the order into batches again.
        *whole, last = batches
        order = torch.randperm(len(whole), generator=random).tolist()
        return iter([number for place in order for number in whole[place]] + last)


class FinetuneTrainer(Trainer):
    """Trains one seed of a job and scores its sets."""

    def __init__(self, job: Job, seed: int, model: Any, arguments: Any):
        """arguments: TrainingArguments, whose output_dir is the folder of the seed."""
        self.job = job
        self.seed = seed
        self.folder = job.folder_of_seed(seed)
        self.threshold = inf
        training = job.task.training
        self.batches = SeededBatches(job.train.lengths, training.batch, seed, training.group_by_length)
        super().__init__(
            model=model,
            args=arguments,
            data_collator=job.kind.collate,
            train_dataset=job.train,
            eval_dataset=job.others[DEV],
            callbacks=[SeedEvents(job, seed, self.batches)],
        )
        self.remove_callback(PrinterCallback)
        # Trainer makes the folder. Until training begins, it would make the output look like that of something else.
        if self.args.should_save:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
        self.model_accepts_loss_kwargs = False
        self._logged_at = perf_counter()

    def fit(self) -> None:
        """Train to the last step from the newest checkpoint, and take the weights of the best epoch. Collective.

        If any rank was asked to stop, saves a checkpoint and raises PreemptedError. Raises DivergedError for a loss
        that is not finite, and StorageError for a checkpoint that cannot be written or read.
        """
        self._choose_kernels()
        checkpoint = self._newest_checkpoint()
        self._logged_at = perf_counter()
        with quiet_transformers():
            self.train(resume_from_checkpoint=checkpoint)
            succeed_on_all_ranks(self._take_best_weights)

    def _newest_checkpoint(self) -> str | None:
        """Return the path of the checkpoint to resume from. Raises UsageError if a rank does not see it."""
        found = run_on_rank_0(lambda: newest_sound(self.folder))
        if found is not None and not all(run_on_all_ranks(lambda: Path(found).exists())):
            raise UsageError(
                f"the ranks do not see the same checkpoints in {self.args.output_dir}. Give an --output that all "
                "machines share."
            )
        return found

    def _take_best_weights(self) -> None:
        """Load the weights of the best epoch. Raises StorageError if they were damaged since they were written.

        Trainer would only warn, and the weights of the last epoch would count as the best ones.
        """
        # The path that Trainer has recorded is that of the output folder at the time, which may have been moved since.
        best = self.folder / f"checkpoint-{self.state.best_global_step}"
        self.state.best_model_checkpoint = str(best)
        fault = fault_of(best)
        if fault is not None:
            raise StorageError(
                f"{best} has the weights of the best epoch, and {fault}. Repeat the command, which continues from an "
                "older checkpoint."
            )
        self._load_best_model()

    def _choose_kernels(self) -> None:
        """Compute the gradients of the two longest features, to learn whether all operations are deterministic."""
        longest = sorted(range(len(self.job.train)), key=lambda number: -self.job.train.lengths[number])[:2]
        batch = self.job.kind.collate([self.job.train[number] for number in longest])
        on_gpu = [self.args.device] if self.args.device.type == "cuda" else []

        def compute() -> None:
            with self.accelerator.autocast():
                loss = self.compute_loss(self.model, self._prepare_inputs(dict(batch)))
            loss.backward()

        with torch.random.fork_rng(devices=on_gpu):
            self.model.train()
            choose_kernels(compute)
        self.model.zero_grad()

    # ---- What Trainer asks ----

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler:
        return self.batches

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return Trainer's optimizer. With layer_decay, each layer has a lower rate than the layer above it."""
        decay = self.job.task.training.layer_decay
        if decay == 1 or self.optimizer is not None:
            return super().create_optimizer(model)

        optimizer_class, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
        decaying = set(self.get_decay_parameter_names(self.model))
        groups = layer_groups(self.model, self.args.learning_rate, decay, self.args.weight_decay, decaying)
        self.optimizer = optimizer_class(groups, **options)
        return self.optimizer

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **rest: Any) -> Any:
        """Return the mean loss of a batch: that of the model, or of choices without the copies that fill them up."""
        if CHOICES not in inputs:
            return super().compute_loss(model, inputs, return_outputs, **rest)

        choices_B, labels_B = inputs.pop(CHOICES), inputs.pop("labels")
        outputs = model(**inputs)
        loss = loss_of_choices(outputs.logits, choices_B, labels_B)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(self, model: Any, inputs: Any, *rest: Any, **more: Any) -> tuple[None, torch.Tensor, None]:
        """Return the logits of a batch, without a loss: labels may be absent."""
        inputs = self._prepare_inputs(inputs)
        columns = {name: values for name, values in inputs.items() if name not in (*TARGETS, CHOICES)}
        with torch.no_grad():
            output = model(**columns)
        return None, self.job.kind.logits(output, columns), None

    def evaluate(self, *arguments: Any, **more: Any) -> dict[str, float]:
        """Score the dev set, and log one line for the epoch. Trainer calls it at the end of each epoch."""
        self.job.watchdog.at(f"seed {self.seed}, step {self.state.global_step}, scoring {DEV}")
        scores, _ = self.scored(DEV)
        history = self.state.log_history
        steps = [line for line in history if "loss" in line]
        mean_loss = sum(line["loss"] for line in steps) / len(steps)

        # One line replaces those of the steps: the state of a long training would grow with each of them.
        self.state.log_history = [line for line in history if "loss" not in line]
        metrics = {f"eval_{name}": value for name, value in scores.items()}
        self.log({"epoch_loss": mean_loss, **metrics})
        self.state.log_history[-1]["seconds"] += sum(line["seconds"] for line in steps)

        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        run_on_rank_0(lambda: write_metrics(self.folder, self.epochs))
        self._say_epoch(mean_loss, scores)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log values with the seconds since the last ones, which add up to the time of the training."""
        now = perf_counter()
        super().log(logs | {"seconds": now - self._logged_at}, start_time)
        self._logged_at = now

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        try:
            super()._save_checkpoint(model, trial)
            if self.args.should_save:
                seal(self.folder / f"checkpoint-{self.state.global_step}")
                keep_newest(self.folder, self.state.best_global_step)
        except (OSError, RuntimeError, SafetensorError) as error:
            # torch's writer raises RuntimeError on a full disk, and names its source file. Others are of a lost rank.
            if isinstance(error, RuntimeError) and "inline_container" not in str(error):
                raise
            reason = "a file could not be written whole" if isinstance(error, RuntimeError) else first_line(error)
            advice = advice_on_limit(error) or "Free some space or check permissions"
            raise StorageError(
                f"{self.args.output_dir} cannot be written: {reason}. {advice}; the same command continues."
            ) from error

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # Rank 0 completes the checkpoint next. It waits for the files of the others.
        run_on_all_ranks(lambda: None)

    # ---- Scores ----

    def scored(self, name: str) -> tuple[dict[str, float], list[Any]]:
        """Return the scores of a set, and its predictions in the form that metrics take.

        The dev set comes first, because it chooses the threshold. The scores are empty if no example has a label.
        """
        examples = self.job.others[name]
        predictions = self.job.kind.predictions(examples.examples, examples.features, self._logits(examples))
        if name == DEV:
            self.threshold = self.job.threshold(predictions)
        final = self.job.kind.final(predictions, self.threshold)
        return score(self.job.kind, examples.examples, final), final

    def _logits(self, examples: FeatureSet) -> list[Any]:
        """Return the logits of each feature. Raises DivergedError on all ranks if one is not finite."""
        # The longest come first, so that a run that lacks memory fails in its first batch.
        order = sorted(range(len(examples)), key=lambda number: -examples.lengths[number])
        found = self.predict(Subset(examples, order)).predictions

        logits: list[Any] = [None] * len(examples)
        for number, of_row in zip(order, chain.from_iterable(found), strict=True):
            logits[number] = self.job.kind.logits_of(examples.features[number], of_row)
            if not np.isfinite(logits[number]).all():
                raise diverged(self.job.task, "the model computes scores that are NaN or infinite")
        return logits

    # ---- What the log holds ----

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """For each finished epoch its number, its last step, the mean loss of its steps, and the dev scores."""
        epochs = []
        for line in self.state.log_history:
            if "epoch_loss" in line:
                scores = {key.removeprefix("eval_"): value for key, value in line.items() if key.startswith("eval_")}
                # A checkpoint does not keep their order.
                names = [*self.job.task.metrics, *sorted(scores.keys() - self.job.task.metrics)]
                of_epoch = {"epoch": len(epochs) + 1, "step": line["step"], "loss": line["epoch_loss"]}
                epochs.append(of_epoch | {name: scores[name] for name in names})
        return epochs

    @property
    def best_epoch(self) -> int:
        """The number of the best epoch, from 1; the earliest of several."""
        return next(epoch["epoch"] for epoch in self.epochs if epoch["step"] == self.state.best_global_step)

    @property
    def seconds(self) -> float:
        """The time that training has taken, that before each resume included."""
        return sum(line["seconds"] for line in self.state.log_history)

    def _say_epoch(self, loss: float, scores: dict[str, float]) -> None:
        main = self.job.task.metrics[0]
        earlier = [epoch[main] for epoch in self.epochs[:-1]]
        logger.info(
            "seed %d, epoch %d of %d: loss %.4f, dev %s%s",
            self.seed,
            len(self.epochs),
            self.state.num_train_epochs,
            loss,
            ", ".join(f"{name} {value:.4f}" for name, value in scores.items()),
            " (best)" if not earlier or scores[main] > max(earlier) else "",
        )


# Layer-wise rates: each layer has a lower learning rate than the layer above it. The head has the full rate, and the
# embeddings have the lowest one (Clark et al., ELECTRA, arXiv:2003.10555, appendix B).


def layer_groups(
    model: Any, rate: float, layer_decay: float, weight_decay: float, decaying: Collection[str]
) -> list[dict[str, Any]]:
    """Return an optimizer's groups of parameters, one for each depth with and without weight decay.

    rate: of the head. layer_decay: the factor between the rates of a layer and of the layer above it. decaying: the
    names of the parameters with weight decay.
    """
    depths = depths_of(model)
    head = max(depths.values())

    groups: dict[tuple[int, bool], list[Any]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[depths[name], name in decaying].append(parameter)

    settings = []
    for (depth, has_decay), parameters in sorted(groups.items(), key=lambda item: item[0]):
        of_depth = {"lr": rate * layer_decay ** (head - depth), "weight_decay": weight_decay if has_decay else 0.0}
        settings.append({"params": parameters, **of_depth})
    return settings


def depths_of(model: Any) -> dict[str, int]:
    """Return the depth of each parameter: 0 for embeddings, 1 for the first layer, and layers + 1 for the head.

    Encoder parameters that belong neither to a layer nor to the embeddings (a final norm, a pooler) have the depth of
    the last layer. ALBERT's shared layers all have depth 1.
    """
    encoder = f"{model.base_model_prefix}."
    names = [name for name, _ in model.named_parameters()]
    found = {name: LAYER.match(name) for name in names if name.startswith(encoder)}
    layers = list(dict.fromkeys(layer[0] for layer in found.values() if layer))
    last = max(1, len(layers))  # ALBERT's layers have no numbers

    def depth_of(name: str) -> int:
        if name not in found:
            return last + 1
        layer = found[name]
        if layer:
            return layers.index(layer[0]) + 1
        return 0 if "embed" in name else last

    return {name: depth_of(name) for name in names}
