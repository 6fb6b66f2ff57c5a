"""A small ELECTRA, its parts here and in transformers, and batches with draws for its generator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from schemas.masking import Masking
from tests.small_models import alone, as_theirs, random_model, section
from trainer.config.sections import ModelSection
from trainer.data.dataset import PairFolder
from trainer.data.loader import BatchFormat, MaskingSchedule, Stream
from trainer.data.mixture import build_sources
from trainer.data.rank_share import RankShare
from trainer.models.batch import PackedBatch
from trainer.models.parts import parts_of

PARTS = ("discriminator", "generator")


def electra(*changes: str) -> ModelSection:
    """The generator's width is the embeddings', so it alone has no projection."""
    return section("electra", "embedding_size=16", "generator_size=0.33333", *changes)


def drawn(pairs: Path, share: RankShare, step: int = 0) -> list[PackedBatch]:
    """One rank's part of a global batch of twelve rows, with draws."""
    sources = build_sources([PairFolder(str(pairs))], None, 0, False)
    stream = Stream(sources, share, MaskingSchedule(Masking()), 0, BatchFormat(has_draws=True))
    try:
        return stream.batch(step)
    finally:
        stream.close()


def electra_case(pairs: Path, folder: Path) -> SimpleNamespace:
    """A model, its parts here and in transformers, and a batch of twelve rows."""
    vocabulary = PairFolder(str(pairs)).vocabulary
    model: Any = random_model(electra(), vocabulary)
    batch = drawn(pairs, RankShare(0, 1, 1, 12))[0]
    parts = dict(zip(PARTS, parts_of(model), strict=True))
    theirs = {name: as_theirs(part.model, vocabulary, folder / name) for name, part in parts.items()}  # type: ignore[arg-type]
    pad = vocabulary.special_id("pad")
    return SimpleNamespace(model=model, batch=batch, parts=parts, theirs=theirs, vocabulary=vocabulary, pad=pad)


def one_row(batch: PackedBatch, s: int) -> PackedBatch:
    """The batch of one row alone, with its draws."""
    assert batch.draws_K is not None
    is_in_row_K = batch.sequence_T[batch.masked_positions_K] == s
    return replace(alone(batch, s), draws_K=batch.draws_K[is_in_row_K])


def shared_table(model: Any) -> Tensor:
    """The embeddings that both parts share."""
    return model.encoder.embeddings.token.weight
