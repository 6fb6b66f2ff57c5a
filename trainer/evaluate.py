"""Evaluates on held-out pairs: the same rows with the same masks each time, on any number of ranks.

Every row of evaluation.pairs is masked once by the run's kind of masking, or by each kind with evaluation.all_kinds,
with a constant seed and BERT's 15 %, so figures are comparable between steps, runs and recipes. Sums over all ranks are
divided by their counts at the end, so the figures depend on the model's weights alone, up to rounding.

Batches are prepared in the background, and the host reads nothing from the device before the end.

They come with the baseline on the same labels: the loss of a model that only knows word frequencies
(data/counts.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from time import perf_counter

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from schemas.errors import DataError, UsageError
from schemas.masking import KINDS, Kind, Masking
from trainer.checkpoint.format import location, read_evaluation
from trainer.config.phases import Phase, evaluation_is_due
from trainer.config.schema import Recipe
from trainer.config.sections import HELD_OUT_PROB, MaskingSection
from trainer.data.counts import WordFrequencies
from trainer.data.folder import PairFolder, check_rows, open_folder
from trainer.data.order import Source, build_sources
from trainer.data.share import RankShare
from trainer.data.stream import CPU, BatchFormat, MaskingSchedule, Stream, needs_draws
from trainer.distributed.collectives import run_on_rank_0
from trainer.logs import logger
from trainer.metrics.log import Figures, is_evaluation, read_metrics
from trainer.metrics.sums import NAMES_BY_KIND, Sums, check_any_predicted, evaluation_figures
from trainer.models.batch import IGNORE_INDEX, PackedBatch
from trainer.models.families import FAMILIES
from trainer.models.pretraining import SUMS, PretrainingModel
from trainer.step import host_counts

EVALUATION_SEED = 0
"""The seed of the order and the masks of held-out rows. It does not depend on the run's seed."""


@dataclass(frozen=True)
class KindsInTurn(MaskingSchedule):
    """Masks each batch by one of `kinds`, in turn."""

    kinds: tuple[Kind, ...] = KINDS

    def at(self, number: int) -> Masking:
        """Return how masks are drawn in batch `number`."""
        return replace(self.masking, kind=self.kinds[number % len(self.kinds)])


class HeldOutStream(Stream):
    """The batches of an evaluation: each of `bounds` once for each kind of masking, then from the beginning again."""

    def __init__(
        self,
        sources: list[Source],
        bounds: list[tuple[int, int]],
        schedule: KindsInTurn,
        share: RankShare,
        batch_format: BatchFormat,
    ):
        self._bounds = bounds
        self._repeats = len(schedule.kinds)
        super().__init__(sources, share, schedule, EVALUATION_SEED, batch_format)

    def bounds_of(self, number: int) -> list[tuple[int, int]]:
        """Return the part of the rows of batch `number`, as `micro_batches_at` takes it."""
        return [self._bounds[number // self._repeats % len(self._bounds)]]


class Evaluation:
    """One rank's share of the held-out rows, for any number of evaluations."""

    def __init__(
        self,
        recipe: Recipe,
        folder: PairFolder,
        share: RankShare,
        frequencies: WordFrequencies | None = None,
        device: torch.device = CPU,
    ):
        """Raises DataError if the folder has fewer rows than a step has micro-batches on all ranks.

        frequencies: of the training text; without them there is no `eval_unigram_loss`. device: where batches go.
        """
        # Held-out batches always have the full size, even while training batches still ramp up to it.
        share = replace(share, ramp=())
        sources = build_sources([folder], None, EVALUATION_SEED, by_tokens=recipe.batch.global_tokens is not None)
        check_enough_rows(folder, share)

        self._kind: Kind = recipe.masking.kind
        self._kinds: tuple[Kind, ...] = KINDS if recipe.evaluation.all_kinds else (self._kind,)
        self.fingerprint = folder.manifest.fingerprint
        self._folder = folder.folder
        self._detects_replaced = needs_draws(recipe)
        self._losses_V: Tensor | None = None
        if frequencies is not None:
            self._losses_V = torch.from_numpy(frequencies.losses_V).to(device, torch.float64)

        # Batches are not padded to one shape: nothing is kept for gradients, so they may be larger than in training.
        permuted = FAMILIES[recipe.model.family].two_streams
        schedule = KindsInTurn(Masking(self._kind, HELD_OUT_PROB), permuted=permuted, kinds=self._kinds)
        batch_format = BatchFormat(device=device, has_draws=self._detects_replaced)
        places = sources[0].order.epoch_size
        if recipe.evaluation.batches is not None:
            places = min(places, recipe.evaluation.batches * share.size)
        bounds = batch_bounds(places, share.size)
        self._batches = len(bounds) * len(self._kinds)
        self._stream = HeldOutStream(sources, bounds, schedule, share, batch_format)

    def measure(self, engine: DeepSpeedEngine, stop_requested: Callable[[], bool]) -> Figures | None:
        """Evaluate the engine's weights. Returns None if a stop was requested before the end. A collective call.

        The figures are `eval_NAME` with the run's own kind of masking, `eval_KIND_NAME` with each kind if there are
        several, `eval_unigram_loss`, the loss of word frequencies alone on the labels of `eval_mlm_loss`, and
        `eval_seconds`. `stop_requested` is called before each batch, by all ranks together.
        """
        started = perf_counter()

        # Batches have many different shapes here, and compiled layers would be recompiled for each of them.
        with torch.compiler.set_stance("force_eager"):
            sums = self._sums(engine, stop_requested)
        if sums is None:
            return None

        dist.all_reduce(sums)
        values_by_kind = zip(self._kinds, sums.tolist(), strict=True)
        sums_by_kind = {kind: Sums(*values) for kind, values in values_by_kind}
        for kind, sums_of_kind in sums_by_kind.items():
            check_any_predicted(
                sums_of_kind,
                f"evaluation.pairs {self._folder} has no token that masks of kind {kind} can be drawn on: its rows "
                "hold only unknown words. Use a vocabulary that covers the text, or hold out other text.",
            )
        by_kind = {kind: evaluation_figures(total, self._detects_replaced) for kind, total in sums_by_kind.items()}

        result: Figures = {f"eval_{name}": value for name, value in by_kind[self._kind].items()}
        if len(self._kinds) > 1:
            for kind, values in by_kind.items():
                result |= {f"eval_{kind}_{name}": values[name] for name in NAMES_BY_KIND if name in values}

        if self._losses_V is not None:
            sums_of_run = sums_by_kind[self._kind]
            result["eval_unigram_loss"] = sums_of_run.unigram_sum / sums_of_run.predicted
        result["eval_seconds"] = perf_counter() - started
        return result

    def first_batch(self) -> list[PackedBatch]:
        """Return this rank's micro-batches of the first batch of rows, with the run's own kind of masking."""
        return self._stream.batch(self._kinds.index(self._kind))

    def close(self) -> None:
        """Stop the reading thread and close the folder."""
        self._stream.close()

    def batches(self) -> Iterator[tuple[Kind, list[PackedBatch]]]:
        """Yield this rank's micro-batches of each batch, masked by each kind. All ranks yield equally often."""
        for number in range(self._batches):
            yield self._kinds[number % len(self._kinds)], self._stream.batch(number)

    @torch.no_grad()
    def _sums(self, engine: DeepSpeedEngine, stop_requested: Callable[[], bool]) -> Tensor | None:
        """Return this rank's sums, float64, or None if evaluation was interrupted.

        A row for each kind of masking has the fields of `Sums`.
        """
        device = torch.device(engine.device or "cpu")
        model: PretrainingModel = engine.module  # type: ignore[assignment]
        sums = torch.zeros(len(self._kinds), len(fields(Sums)), dtype=torch.float64, device=device)
        counts = torch.zeros(len(self._kinds), sums.shape[1] - SUMS - 1, dtype=torch.float64)

        engine.eval()
        try:
            for kind, micro_batches in self.batches():
                if stop_requested():
                    return None

                index = self._kinds.index(kind)
                for micro_batch in micro_batches:
                    losses = engine(micro_batch)
                    sums[index, :SUMS] += losses.stacked()
                    sums[index, -1] += self._unigram_sum(micro_batch)
                counts[index] += host_counts(model, micro_batches)
        finally:
            engine.train()

        # Counts are summed on the host and copied to the device once, because every copy waits for the device.
        sums[:, SUMS:-1] = counts.to(device)
        return sums

    def _unigram_sum(self, micro_batch: PackedBatch) -> Tensor | float:
        """Return the labels' cross-entropy under word frequencies, () float64 on the device of the batch."""
        if self._losses_V is None:
            return 0.0
        labels_K = micro_batch.labels_K
        return torch.where(labels_K == IGNORE_INDEX, 0.0, self._losses_V[labels_K.clamp(min=0)]).sum()


def open_evaluation(
    recipe: Recipe,
    folders: list[PairFolder],
    share: RankShare,
    frequencies: WordFrequencies | None = None,
    device: torch.device = CPU,
) -> Evaluation | None:
    """Open a phase's held-out pairs; None if its recipe has no evaluation.pairs.

    frequencies: of the phase's training text. device: where batches go.

    Raises UsageError or DataError if they do not fit the phase's training `folders`.
    """
    if recipe.evaluation.pairs is None:
        return None

    folder = open_folder(recipe, recipe.evaluation.pairs)
    check_held_out(folder, folders)

    # Masks are drawn here, so the folder needs no stored ones even if the recipe trains on those.
    check_rows(recipe.model_copy(update={"masking": MaskingSection()}), folder.manifest, folder.folder)
    return Evaluation(recipe, folder, share, frequencies, device)


def is_evaluated(run_recipe: Recipe, phase: Phase, step: int) -> bool:
    """Return whether the evaluation that is due after `step`, if one is, is in its checkpoint and in the metrics.

    A collective call.
    """
    if not evaluation_is_due(run_recipe, phase, step):
        return True
    run = run_recipe.run.folder
    return run_on_rank_0(
        lambda: (
            any(line["step"] == step and is_evaluation(line) for line in read_metrics(run))
            and bool(read_evaluation(location(run, step)))
        )
    )


def check_held_out(folder: PairFolder, trained: list[PairFolder]) -> None:
    """Raise DataError if the vocabularies differ, and UsageError if the held-out rows are also training rows."""
    vocabulary = folder.vocabulary.fingerprint
    trained_vocabulary = trained[0].vocabulary.fingerprint
    if vocabulary != trained_vocabulary:
        raise DataError(
            f"evaluation.pairs {folder.folder} has vocabulary {vocabulary}, but {trained[0].folder} "
            f"has {trained_vocabulary}. Rebuild one with the other's."
        )

    if folder.manifest.fingerprint in [other.manifest.fingerprint for other in trained]:
        raise UsageError(
            f"evaluation.pairs {folder.folder} holds the rows of data.pairs, and a loss on training data says nothing "
            "about other text. Give pairs made from other documents."
        )

    text = text_of(folder)
    for other in trained:
        if text is not None and text == text_of(other):
            logger.warning(
                "evaluation.pairs %s and data.pairs %s were made from the same text, so the held-out loss is that of "
                "text the run trains on. To keep documents apart: `clozeline shard --holdout 0.05`.",
                folder.folder,
                other.folder,
            )


def text_of(folder: PairFolder) -> str | None:
    """Return the fingerprint of the text that pairs were made from, None if they do not say."""
    inputs = list(folder.manifest.inputs)  # the text, then the vocabulary
    return inputs[0].fingerprint if inputs else None


def check_enough_rows(folder: PairFolder, share: RankShare) -> None:
    """Raise DataError if a folder has fewer rows than a step has micro-batches on all ranks."""
    rows = folder.manifest.totals["rows"]
    if rows < share.micro_batches_per_step:
        raise DataError(
            f"evaluation.pairs {folder.folder} has {rows} rows, fewer than the "
            f"{share.micro_batches_per_step} micro-batches of a step. Hold out more text, or use fewer ranks or "
            "larger micro-batches."
        )


def batch_bounds(places: int, size: int) -> list[tuple[int, int]]:
    """Divide all places into batches of `size` or a little more, and return their half-open ranges.

    Example: `batch_bounds(11, 4)` -> `[(0, 5), (5, 11)]`.
    """
    batches = max(1, places // size)
    return [(places * i // batches, places * (i + 1) // batches) for i in range(batches)]
