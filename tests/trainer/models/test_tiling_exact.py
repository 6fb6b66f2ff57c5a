"""A model filled with tiles computes what the smaller one does, and its duplicates do not stay equal in training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.small_models import FAMILIES, SMALL_VOCABULARY, random_model
from tests.trainer.models.test_attention import batch_of
from tests.trainer.models.tiling_models import fresh, multiple_section, small_section, weights, write_parts
from trainer.models.batch import PackedBatch
from trainer.models.electra import parts_of
from trainer.models.pretraining import PretrainingModel
from trainer.models.tiling import shares, tile_model, tile_places

CASES = [
    *[(family, ()) for family in FAMILIES],
    ("eurobert", ("tied=true",)),
    ("electra", ()),
]


def random_batch(seed: int) -> PackedBatch:
    """Four sequences of random tokens, two of which are to be predicted, with labels for pairs and draws."""
    generator = torch.Generator().manual_seed(seed)
    batch = batch_of([5, 9, 1, 7])
    return replace(
        batch,
        ids_T=torch.randint(5, SMALL_VOCABULARY.size, batch.ids_T.shape, generator=generator),
        labels_K=torch.randint(5, SMALL_VOCABULARY.size, (2,), generator=generator),
        pair_labels_S=torch.randint(2, (4,), generator=generator),
        draws_K=torch.randint(2**62, (2,), generator=generator),
    )


@torch.no_grad()
def all_logits(model: PretrainingModel, batch: PackedBatch) -> list[Tensor]:
    """Those of the vocabulary, of pairs, and of replaced tokens, as far as the model has them."""
    logits = [logits for part in parts_of(model.eval()) for logits in part.model.logits(batch)]
    return [values for values in logits if values is not None]


def assert_same_logits(large: PretrainingModel, small: PretrainingModel) -> None:
    batch = random_batch(0)
    for ours, theirs in zip(all_logits(large, batch), all_logits(small, batch), strict=True):
        assert float((ours - theirs).abs().max()) < 1e-5 * float(theirs.abs().max())


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_a_multiple_of_the_width_computes_what_the_smaller_model_does(
    family: str, changes: tuple[str, ...], tmp_path: Path
) -> None:
    small = random_model(small_section(family, *changes), SMALL_VOCABULARY)
    folder = write_parts(small, tmp_path)
    for factor in (2, 3):
        # Nothing is normalized inside of the feed-forward network, so it may grow to any size.
        inner = f"intermediate_size={80 * factor + 7}"
        large = fresh(multiple_section(family, factor, inner, *changes))
        assert tile_model(large, str(folder), SMALL_VOCABULARY) == []
        assert_same_logits(large, small)


def test_embeddings_and_layers_may_grow_separately(tmp_path: Path) -> None:
    small = random_model(small_section("albert"), SMALL_VOCABULARY)
    folder = write_parts(small, tmp_path)
    for changes in (["embedding_size=24"], ["hidden_size=48", "num_attention_heads=3"]):
        large = fresh(multiple_section("albert", 2, *changes))
        tile_model(large, str(folder), SMALL_VOCABULARY)
        assert_same_logits(large, small)


def test_shares_of_a_place_sum_to_one() -> None:
    assert shares(torch.tensor([1, 0, 1])).tolist() == pytest.approx([0.4, 1.0, 0.6])
    for small in range(1, 6):
        for size in range(small, 20):
            places_P = tile_places(size, small)
            sums = torch.zeros(small).index_add_(0, places_P, shares(places_P))
            torch.testing.assert_close(sums, torch.ones(small))
            for place in range(small):
                of_place = shares(places_P)[places_P == place]
                assert of_place.unique().numel() == of_place.numel() and float(of_place.min()) > 0


def separation(before: Tensor, after: Tensor, places_P: Tensor) -> Tensor:
    """How far each two rows that began as duplicates have come apart, over how far the rows have moved."""
    moved = after - before
    is_pair = (places_P[:, None] == places_P[None, :]).triu(1)
    first, second = is_pair.nonzero(as_tuple=True)
    assert len(first) and torch.equal(before[first], before[second])
    return (moved[first] - moved[second]).norm(dim=1) / moved[first].norm(dim=1)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_duplicates_train_apart(family: str, tmp_path: Path) -> None:
    """At least by a part in 200 in five steps of Adam; by 1 in 1,000 if all rows had the same shares."""
    small = random_model(small_section(family), SMALL_VOCABULARY)
    large = fresh(multiple_section(family, 2)).train()
    tile_model(large, str(write_parts(small, tmp_path)), SMALL_VOCABULARY)
    before = weights(large)

    optimizer = torch.optim.AdamW(large.parameters(), lr=1e-3)
    for step in range(5):
        large(random_batch(step)).total().backward()
        optimizer.step()
        optimizer.zero_grad()

    after = weights(large)
    width_P = tile_places(96, 48)
    half_P = tile_places(160, 80)
    inner_P = torch.cat([half_P, half_P + 80]) if large.shape.gated else half_P
    for layer in range(4):
        for end, places_P in {"up": inner_P, "down": width_P, "attention.out": width_P}.items():
            name = f"encoder.layers.{layer}.{end}.weight"
            assert float(separation(before[name], after[name], places_P).min()) > 0.005, name
