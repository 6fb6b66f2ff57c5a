"""Evaluation on pairs that were held out: the same rows and the same masks each time, at any number of ranks.

Every row of evaluation.pairs is masked once by each kind of mask, with constant keys and BERT's 15%, so figures compare
between steps, runs and recipes. The sums over all ranks are divided by their counts at the end; nothing of a run
decides them but its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp
from time import perf_counter

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from schemas.errors import DataError, UsageError
from schemas.masking import KINDS, Kind, Masking
from trainer.config.phases import Phase
from trainer.config.schema import MaskingSection, Recipe
from trainer.data.build import check_folder
from trainer.data.dataset import PairFolder
from trainer.data.loader import MaskingSchedule, RankShare, Stream
from trainer.data.mixture import build_sources
from trainer.models.batch import PackedBatch
from trainer.models.pretraining import PretrainingModel

SEED = 0  # of the order and the masks, whatever the run's
MASK_PROB = 0.15
Figures = dict[str, float | None]


class Evaluation:
    """A rank's part of the held-out rows, for as often as they are needed."""

    def __init__(self, recipe: Recipe, folder: PairFolder, share: RankShare):
        """Raises DataError when the folder has fewer rows than the ranks have micro-batches."""
        sources = build_sources([folder], None, SEED, by_tokens=recipe.batch.global_tokens is not None)
        rows, batches = folder.manifest.totals["rows"], recipe.evaluation.batches
        if rows < share.micro_batches_per_step:
            raise DataError(
                f"evaluation.pairs {folder.folder} has {rows} rows, fewer than the "
                f"{share.micro_batches_per_step} micro-batches of a step. Hold out more text, or use fewer ranks or "
                "larger micro-batches."
            )
        places = sources[0].order.epoch_size
        self._bounds = batch_bounds(places if batches is None else min(places, batches * share.size), share.size)
        self._kind = recipe.masking.kind
        self._folder = folder.folder
        # in shapes as they come: nothing is kept for gradients, so a batch may be larger than in training
        self._streams: dict[Kind, Stream] = {
            kind: Stream(sources, share, MaskingSchedule(Masking(kind, MASK_PROB)), SEED) for kind in KINDS
        }

    def measure(self, engine: DeepSpeedEngine, stopping: Callable[[], bool]) -> Figures | None:
        """eval_* of the engine's weights, for each kind of mask and once more for the run's own. A collective call.

        `stopping` is asked on all ranks together, as often as in training; None when it said yes.
        """
        started = perf_counter()
        with torch.compiler.set_stance("force_eager"):  # batches here have many shapes, each of which would be compiled
            sums = self._sums(engine, stopping)
        if sums is None:
            return None
        dist.all_reduce(sums)
        check_masked(sums.tolist(), self._folder)
        by_kind = {kind: figures(row) for kind, row in zip(KINDS, sums.tolist(), strict=True)}
        own = by_kind[self._kind]
        found = {f"eval_{name}": value for name, value in own.items()}
        for kind in KINDS:
            names = ("mlm_loss", "perplexity", "mlm_accuracy")
            found |= {f"eval_{kind}_{name}": by_kind[kind][name] for name in names}
        return found | {"eval_seconds": perf_counter() - started}

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()

    def batches(self) -> Iterator[tuple[Kind, list[PackedBatch]]]:
        """This rank's part of the rows, each batch masked by every kind: as many micro-batches on all ranks."""
        for bounds in self._bounds:
            for kind, stream in self._streams.items():
                yield kind, stream.micro_batches_at([bounds], 0)

    @torch.no_grad()
    def _sums(self, engine: DeepSpeedEngine, stopping: Callable[[], bool]) -> Tensor | None:
        """(kinds, 6) float64 of this rank: the four sums of Losses, masked places, labeled rows."""
        device = torch.device(engine.device or "cpu")
        sums = torch.zeros(len(KINDS), 6, dtype=torch.float64, device=device)
        model: PretrainingModel = engine.module  # type: ignore[assignment]
        engine.eval()
        try:
            for kind, batches in self.batches():
                if stopping():
                    return None
                sums_6 = sums[KINDS.index(kind)]
                for batch in batches:
                    sums_6[:4] += torch.stack(list(engine(batch.to(device)))).double()
                    counts = [batch.predicted, model.labeled_pairs(batch)]
                    sums_6[4:] += torch.tensor(counts, dtype=torch.float64, device=device)
        finally:
            engine.train()
        return sums


def open_evaluation(recipe: Recipe, folders: list[PairFolder], share: RankShare) -> Evaluation | None:
    """None when the recipe has no evaluation.pairs. Raises UsageError or DataError when they do not fit `folders`."""
    if recipe.evaluation.pairs is None:
        return None
    folder = PairFolder(recipe.evaluation.pairs, recipe.data.cache, int(recipe.data.cache_gigabytes * 10**9))
    if folder.vocabulary.fingerprint != folders[0].vocabulary.fingerprint:
        raise DataError(
            f"evaluation.pairs {folder.folder} has vocabulary {folder.vocabulary.fingerprint}, but {folders[0].folder} "
            f"has {folders[0].vocabulary.fingerprint}. Rebuild one with the other's."
        )
    if folder.manifest.fingerprint in [trained.manifest.fingerprint for trained in folders]:
        raise UsageError(
            f"evaluation.pairs {folder.folder} holds the rows of data.pairs; what was trained on tells nothing. "
            "Give pairs of other documents."
        )
    check_folder(folder, recipe.model_copy(update={"masking": MaskingSection()}))
    return Evaluation(recipe, folder, share)


def due(recipe: Recipe, phase: Phase, step: int) -> bool:
    """Whether a step of a phase is one after which the held-out pairs are measured."""
    section, ends = recipe.evaluation, (phase.steps_before, phase.last_step)
    return section.pairs is not None and step > 0 and (step % section.every == 0 or step in ends)


def batch_bounds(places: int, size: int) -> list[tuple[int, int]]:
    """All places, in batches of `size` or a little more. Example: `batch_bounds(11, 4)` -> `[(0, 5), (5, 11)]`."""
    n = max(1, places // size)
    return [(places * i // n, places * (i + 1) // n) for i in range(n)]


def check_masked(sums: list[list[float]], folder: str) -> None:
    """Raise DataError, on all ranks together, when nothing of the held-out pairs is to be predicted: no loss."""
    for kind, (*_, masked, _) in zip(KINDS, sums, strict=True):
        if not masked:
            error = DataError(
                f"evaluation.pairs {folder} has no token that masks of kind {kind} can be drawn on: its rows hold "
                "unknown words alone. Use a vocabulary that covers the text, or hold out other text."
            )
            error.everywhere = True  # the sums are over all ranks
            raise error


def figures(sums: list[float]) -> Figures:
    """Means over masked places and labeled rows; None where there is no labeled row."""
    mlm_sum, mlm_correct, pair_sum, pair_correct, masked, pairs = sums
    return {
        "mlm_loss": mlm_sum / masked,
        "perplexity": exp(min(mlm_sum / masked, 700.0)),  # exp(710) is no float
        "mlm_accuracy": mlm_correct / masked,
        "pair_loss": pair_sum / pairs if pairs else None,
        "pair_accuracy": pair_correct / pairs if pairs else None,
    }
