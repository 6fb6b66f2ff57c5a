"""The tokens that ELECTRA's generator draws: from the softmax, by the row alone, and what counts as replaced."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from schemas.masking import Masking
from tests.small_models import random_model
from tests.trainer.models.electra_models import drawn, electra, electra_case
from trainer.data.batches import pad_to_shape, shape_for
from trainer.data.folder import PairFolder
from trainer.data.order import build_sources
from trainer.data.share import RankShare
from trainer.data.stream import MaskingSchedule, Stream
from trainer.models.batch import PackedBatch
from trainer.models.replaced_tokens import replace_tokens, sample_from_softmax


@pytest.fixture(scope="module")
def case(pairs: Path, tmp_path_factory) -> SimpleNamespace:
    return electra_case(pairs, tmp_path_factory.mktemp("electra"))


@pytest.mark.parametrize("vocabulary", [7, 64, 200])
def test_draws_have_the_distribution_of_the_softmax(vocabulary: int) -> None:
    """Pearson's chi-square of 200,000 draws, with a fixed seed: below the 99.9 % quantile, by Wilson and Hilferty."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits_V = 1.5 * torch.randn(vocabulary, generator=generator)
    logits_V[3] = -torch.inf  # as padding of the vocabulary has
    draws = 200_000
    draws_K = torch.randint(1 << 63 - 1, (draws,), generator=generator) * 2 + 1

    ids_K = torch.cat([sample_from_softmax(logits_V.expand(20_000, -1), part_K) for part_K in draws_K.split(20_000)])
    found_V = torch.bincount(ids_K, minlength=vocabulary).double()
    expected_V = draws * logits_V.double().softmax(0)
    assert len(found_V) == vocabulary and found_V[3] == 0

    possible_V = expected_V > 0
    statistic = float(((found_V - expected_V)[possible_V] ** 2 / expected_V[possible_V]).sum())
    freedom = int(possible_V.sum()) - 1
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3


def test_draws_equal_a_plain_loop() -> None:
    """Which goes through the blocks of a row, and through the tokens of one, until a running sum passes the draw."""
    generator = torch.Generator().manual_seed(0)
    logits_KV = torch.randn(50, 300, generator=generator)
    draws_K = torch.randint((1 << 63) - 1, (50,), generator=generator)

    def choose(weights: list[float], share: float) -> int:
        total = 0.0
        for place, weight in enumerate(weights):
            total += weight
            if total > share * sum(weights):
                return place
        raise AssertionError

    expected = []
    for logits_V, draw in zip(logits_KV, draws_K.tolist(), strict=True):
        weights = logits_V.double().softmax(0).tolist()
        blocks = [weights[start : start + 64] for start in range(0, 300, 64)]
        block = choose([sum(block) for block in blocks], (draw >> 32) / 2**31)
        expected.append(64 * block + choose(blocks[block], (draw % 2**31) / 2**31))
    assert sample_from_softmax(logits_KV, draws_K).tolist() == expected


def test_logits_that_are_not_finite_give_a_loss_that_is_not_finite(case) -> None:
    """And no index that a table of embeddings lacks."""
    model = random_model(electra(), case.vocabulary)
    with torch.no_grad():
        model.encoder.embeddings.norm.weight.fill_(torch.nan)  # type: ignore[union-attr, operator]
    assert model(case.batch).total().isnan()


def test_a_token_drawn_as_it_was_is_not_replaced(case) -> None:
    """Every other masked token is drawn right. Masked places that only pad the batch replace nothing."""
    filled = pad_to_shape(case.batch, shape_for(512, 25.0, 32, 0.15, padded=False), case.pad)
    sampled_K = filled.labels_K.clone()
    sampled_K[::2] += 1
    seen, replaced_T = replace_tokens(filled, sampled_K)

    masked = case.batch.predicted
    positions_K = case.batch.masked_positions_K
    assert replaced_T.nonzero().flatten().tolist() == positions_K[::2].tolist()
    assert torch.equal(seen.ids_T[positions_K], sampled_K[:masked])
    others_T = torch.ones_like(replaced_T).scatter(0, positions_K, False)
    assert torch.equal(seen.ids_T[others_T], filled.ids_T[others_T])


def replaced_rows(model: Any, batches: list[PackedBatch]) -> dict[bytes, bytes]:
    """For each row, by its tokens: what the discriminator sees of it."""
    rows = {}
    for batch in batches:
        logits_KV, _ = model.logits(batch)
        assert batch.draws_K is not None
        seen, replaced_T = replace_tokens(batch, sample_from_softmax(logits_KV, batch.draws_K))
        original_T = batch.ids_T.scatter(0, batch.masked_positions_K, batch.labels_K)
        assert torch.equal(replaced_T, seen.ids_T != original_T)
        for s in range(len(batch.sequence_starts_S)):
            row = batch.sequence_T == s
            rows[original_T[row].numpy().tobytes()] = seen.ids_T[row].numpy().tobytes()
    return rows


def test_draws_depend_on_the_row_alone(case, pairs: Path) -> None:
    """One micro-batch, four, or three ranks with two each, and a stream that begins later see the same tokens."""
    found = []
    for world_size, pieces in ((1, 1), (1, 4), (3, 2)):
        shares = [RankShare(rank, world_size, pieces, 12) for rank in range(world_size)]
        found.append(replaced_rows(case.model, [batch for share in shares for batch in drawn(pairs, share, step=1)]))
    assert len(found[0]) == 12 and found[0] == found[1] == found[2]


def test_draws_change_with_the_epoch(pairs: Path) -> None:
    rows = PairFolder(str(pairs)).manifest.totals["rows"]
    share = RankShare(0, 1, 1, rows)
    first, again, second = (drawn(pairs, share, step)[0].draws_K for step in (0, 0, 1))
    assert first is not None and again is not None and second is not None
    assert torch.equal(first, again) and not set(first.tolist()) & set(second.tolist())
    assert int(first.min()) >= 0 and np.mean(first.double().numpy() / 2**63) == pytest.approx(0.5, abs=0.02)


def test_only_electra_s_batches_have_draws(pairs: Path) -> None:
    sources = build_sources([PairFolder(str(pairs))], None, 0, False)
    stream = Stream(sources, RankShare(0, 1, 1, 12), MaskingSchedule(Masking()), 0)
    plain = stream.batch(0)[0]
    stream.close()
    other = drawn(pairs, RankShare(0, 1, 1, 12))[0]
    assert plain.draws_K is None and "draws_K" not in plain.tensors()
    assert all(torch.equal(tensor, other.tensors()[name]) for name, tensor in plain.tensors().items())
