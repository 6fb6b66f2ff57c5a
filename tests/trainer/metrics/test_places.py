"""The masked LM's loss by kind of place, against a plain loop over the places."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.trainer.one_rank import VOCABULARY, small_batch, small_recipe
from trainer.metrics.places import PLACE_NAMES, place_means, place_sums
from trainer.models.batch import IGNORE_INDEX, PackedBatch
from trainer.models.place_kinds import PLACE_KINDS
from trainer.models.pretraining import SUMS, Predictions, build_model, predictions, sums_by_place

MASK = 4
LABELS = st.integers(0, 3) | st.just(IGNORE_INDEX)


def batch_of(places: list[tuple[int, int]]) -> PackedBatch:
    """A batch whose places show the first number of each pair and have the second as their label."""
    seen, labels = torch.tensor(places).T
    return replace(
        small_batch(0),
        ids_T=torch.cat([torch.tensor([0]), seen]),
        masked_positions_K=torch.arange(1, len(places) + 1),
        labels_K=labels,
        mask_id=MASK,
    )


def kind_of(seen: int, label: int) -> str:
    if seen == MASK:
        return "masked"
    return "kept" if seen == label else "random"


@given(places=st.lists(st.tuples(st.integers(0, MASK), LABELS), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_sums_are_those_of_a_plain_loop(places: list[tuple[int, int]], seed: int) -> None:
    logits_KV = torch.randn(len(places), MASK + 1, generator=torch.Generator().manual_seed(seed))
    batch = batch_of(places)
    mlm = predictions(logits_KV, batch.labels_K)

    expected = {kind: [0.0, 0, 0] for kind in PLACE_KINDS}
    for logits_V, (seen, label) in zip(logits_KV, places, strict=True):
        if label == IGNORE_INDEX:
            continue
        sums = expected[kind_of(seen, label)]  # type: ignore[index]
        sums[0] += float(F.cross_entropy(logits_V, torch.tensor(label)))
        sums[1] += int(logits_V.argmax()) == label
        sums[2] += 1

    places_33 = sums_by_place(batch, mlm)
    assert places_33 is not None
    found = place_sums(places_33.flatten().tolist())
    for kind in PLACE_KINDS:
        assert list(found[kind].model_dump().values()) == pytest.approx(expected[kind], rel=1e-5, abs=1e-5)

    # The three kinds together are all places.
    assert sum(sums.loss for sums in found.values()) == pytest.approx(float(mlm.loss), rel=1e-5, abs=1e-4)
    assert sum(sums.correct for sums in found.values()) == float(mlm.correct)


@given(st.integers(1, 300), st.integers(2, 200), st.integers(0, 99), st.sampled_from([torch.float32, torch.bfloat16]))
@settings(max_examples=50)
def test_the_trained_loss_and_its_gradient_are_torchs_to_the_last_bit(
    places: int, tokens: int, seed: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(places, tokens, generator=generator).to(dtype)
    logits[:, -1] = float("-inf")  # as the tokens that pad a vocabulary
    labels = torch.randint(0, tokens - 1, (places,), generator=generator)
    labels[1::3] = IGNORE_INDEX

    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = predictions(ours, labels).loss
    expected = F.cross_entropy(theirs.float(), labels, reduction="sum", ignore_index=IGNORE_INDEX)
    loss.backward()
    expected.backward()
    assert ours.grad is not None and theirs.grad is not None
    assert torch.equal(loss, expected) and torch.equal(ours.grad, theirs.grad)


def test_knowing_the_kinds_changes_no_loss_and_no_gradient() -> None:
    plain = small_batch(3, masked=9)
    gradients = []
    sums = []
    for batch in (plain, replace(plain, mask_id=MASK)):
        model = build_model(small_recipe().model, VOCABULARY, seed=0).eval()
        losses = model(batch)
        losses.total().backward()
        sums.append(losses.stacked())
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])

    without, with_kinds = sums
    assert torch.equal(without[:7], with_kinds[:7]) and len(without) == SUMS
    assert not without[7:].any() and with_kinds[7:].any()
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_loss_that_is_not_finite_stays_in_its_kind() -> None:
    batch = batch_of([(MASK, 1), (2, 2), (3, 2)])
    losses_K = torch.tensor([float("nan"), 1.0, 2.0])
    places_33 = sums_by_place(batch, Predictions(losses_K.sum(), losses_K, losses_K, torch.tensor([False] * 3)))
    assert places_33 is not None and places_33[1:, 0].tolist() == [1.0, 2.0]


def test_kinds_without_places_have_no_mean() -> None:
    assert place_means({}) == {} and place_means(place_sums([0.0] * 9)) == {}
    means = place_means(place_sums([6.0, 1, 4, 0, 0, 0, 0, 0, 0]))
    assert tuple(means) == PLACE_NAMES
    assert list(means.values()) == [1.5, None, None, 0.25]
