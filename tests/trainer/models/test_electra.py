"""ELECTRA against transformers and published numbers: both parts, drawn replacements, weights and costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from schemas.errors import DataError, UsageError
from schemas.masking import Masking
from tests.small_models import alone, as_theirs, close, padded, random_model, section, write_hf
from trainer.config.load import load_recipe
from trainer.config.schema import ModelSection
from trainer.data.batches import pad_to_shape, shape_for
from trainer.data.folder import PairFolder
from trainer.data.order import build_sources
from trainer.data.share import RankShare
from trainer.data.stream import BatchFormat, MaskingSchedule, Stream
from trainer.models.batch import PackedBatch
from trainer.models.electra import (
    PartModel,
    ReplacedTokenModel,
    parts_of,
    replace_tokens,
    sample_from_softmax,
)
from trainer.models.families import GENERATOR_FOLDER
from trainer.models.hf_load import warm_start_model
from trainer.models.hf_names import to_hf
from trainer.models.starting_weights import build_model

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
    parts = dict(zip(PARTS, parts_of(model).values(), strict=True))
    theirs = {name: as_theirs(part, vocabulary, folder / name) for name, part in parts.items()}  # type: ignore[arg-type]
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


@pytest.fixture(scope="module")
def case(pairs: Path, tmp_path_factory) -> SimpleNamespace:
    return electra_case(pairs, tmp_path_factory.mktemp("electra"))


def sampled(case: SimpleNamespace, batch: PackedBatch) -> tuple[PackedBatch, torch.Tensor]:
    """The batch as the discriminator sees it, and what is replaced in it."""
    logits_KV, _ = case.model.logits(batch)
    assert batch.draws_K is not None
    return replace_tokens(batch, sample_from_softmax(logits_KV, batch.draws_K))


def gradients_of(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward(retain_graph=True)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_the_generator_equals_transformers(case) -> None:
    """Hidden states, logits, loss and gradient."""
    batch = case.batch
    inputs, place = padded(batch, 2, case.pad)
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[place[0][batch.masked_positions_K], place[1][batch.masked_positions_K]] = batch.labels_K
    output = case.theirs["generator"](**inputs, labels=labels, output_hidden_states=True)

    close("electra, generator, hidden states", case.model.encoder(batch), output.hidden_states[-1][place])
    close("electra, generator, logits", case.model.logits(batch)[0], output.logits[place][batch.masked_positions_K])
    loss = case.model(batch).mlm_sum / batch.predicted
    close("electra, generator, loss", loss, output.loss)
    compare_gradients(case, "generator", loss, output.loss)


def test_the_discriminator_equals_transformers(case) -> None:
    """The same, given the tokens that the generator drew."""
    seen, replaced_T = sampled(case, case.batch)
    assert 0 < replaced_T.sum() <= case.batch.predicted
    inputs, place = padded(seen, 2, case.pad)
    labels = torch.zeros_like(inputs["input_ids"])
    labels[place] = replaced_T.long()
    output = case.theirs["discriminator"](**inputs, labels=labels, output_hidden_states=True)

    discriminator = case.model.discriminator
    close("electra, discriminator, hidden states", discriminator.encoder(seen), output.hidden_states[-1][place])
    logits_T, _ = discriminator.logits(seen)
    close("electra, discriminator, logits", logits_T, output.logits[place])

    losses = case.model(case.batch)
    loss = losses.rtd_sum / case.batch.tokens
    close("electra, discriminator, loss", loss, output.loss)
    assert losses.rtd_correct == ((logits_T > 0) == replaced_T).sum() and losses.replaced == replaced_T.sum()
    compare_gradients(case, "discriminator", loss, output.loss)


def names_in_whole(model: ReplacedTokenModel, part: PartModel) -> dict[str, str]:
    """Return the names of a part's parameters, which it shares with the model, and those that they have there."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    return {name: name_of[id(parameter)] for name, parameter in part.named_parameters()}


def compare_gradients(case: SimpleNamespace, name: str, loss: torch.Tensor, expected: torch.Tensor) -> None:
    """Of a part's loss: the other part, but for the embeddings, gets none from it."""
    part = case.parts[name]
    gradients = gradients_of(case.model, loss)
    names = names_in_whole(case.model, part)
    assert all(not gradients[other].any() for other in gradients.keys() - set(names.values()))

    ours = to_hf({mine: gradients[whole] for mine, whole in names.items()}, part.shape)
    theirs = gradients_of(case.theirs[name], expected)
    assert ours.keys() == theirs.keys()
    print(f"electra, {name}, gradient: {max(float((ours[n] - theirs[n]).abs().max()) for n in ours):.1e}")
    for tensor, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[tensor], atol=1e-5, rtol=1e-4, msg=tensor)


def test_a_packed_batch_computes_what_each_row_does_alone(case) -> None:
    """Sums and gradients, tokens drawn by the generator included; and so does a batch of a fixed shape."""
    rows = [case.model(one_row(case.batch, s)) for s in range(12)]
    together = case.model(case.batch)
    sums = torch.stack([losses.stacked() for losses in rows]).sum(0)
    close("electra, sums, alone", together.stacked(), sums, atol=1e-3, rtol=1e-6)
    apart = gradients_of(case.model, sum(losses.total() for losses in rows))  # type: ignore[arg-type]
    for name, gradient in gradients_of(case.model, together.total()).items():
        torch.testing.assert_close(gradient, apart[name], atol=1e-4, rtol=1e-4, msg=name)

    filled = pad_to_shape(case.batch, shape_for(512, 25.0, 32, 0.15, padded=False), case.pad)
    assert len(filled.ids_T) == 512 > len(case.batch.ids_T) and len(filled.labels_K) > len(case.batch.labels_K)
    close("electra, sums, filled", case.model(filled).stacked(), together.stacked(), atol=1e-3, rtol=1e-6)


@pytest.mark.thorough
def test_compiled_parts_compute_the_same(case) -> None:
    """Traced, without a compiler for the machine."""
    model = random_model(electra(), case.vocabulary)
    model.compile_parts(backend="eager")
    filled = pad_to_shape(case.batch, shape_for(512, 25.0, 32, 0.15, padded=False), case.pad)
    close("electra, sums, compiled", model(filled).stacked(), case.model(filled).stacked(), atol=1e-3, rtol=1e-6)


# Published weights


@pytest.fixture
def published(case, tmp_path: Path) -> Path:
    for subfolder, part in parts_of(case.model).items():
        write_hf(part, case.vocabulary, tmp_path / subfolder)
    return tmp_path


def test_a_pair_of_folders_is_where_a_run_begins(case, published: Path) -> None:
    fresh = build_model(electra(), case.vocabulary.size, 5)
    assert warm_start_model(fresh, str(published), case.vocabulary) == []
    ours = dict(case.model.named_parameters())
    assert all(torch.equal(weight, ours[name]) for name, weight in fresh.named_parameters())


def test_without_a_generator_that_part_begins_anew(case, tmp_path: Path) -> None:
    """As from google/electra-small-discriminator alone."""
    write_hf(case.parts["discriminator"], case.vocabulary, tmp_path)
    fresh = build_model(electra(), case.vocabulary.size, 5)
    assert warm_start_model(fresh, str(tmp_path), case.vocabulary) == [GENERATOR_FOLDER]
    ours = dict(case.model.named_parameters())
    equal = {name for name, weight in fresh.named_parameters() if torch.equal(weight, ours[name])}
    assert equal == set(names_in_whole(case.model, case.parts["discriminator"]).values())


def test_a_generator_of_another_pair_is_refused(case, published: Path) -> None:
    other = random_model(electra(), case.vocabulary)
    with torch.no_grad():
        shared_table(other).mul_(1.5)
    write_hf(parts_of(other)[GENERATOR_FOLDER], case.vocabulary, published / GENERATOR_FOLDER)  # type: ignore[arg-type]
    fresh = build_model(electra(), case.vocabulary.size, 5)
    with pytest.raises(DataError, match=r"other token.weight embeddings than its subfolder generator"):
        warm_start_model(fresh, str(published), case.vocabulary)


def test_draws_equal_a_plain_loop() -> None:
    """Which goes through the blocks of a row, and through the tokens of one, until a running sum passes the draw."""
    generator = torch.Generator().manual_seed(0)
    logits_KV = torch.randn(50, 300, generator=generator)
    logits_KV[:, 3::3] = -torch.inf  # as padding of the vocabulary has
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


def test_initial_weights_are_those_of_google_s_code() -> None:
    """Truncated at two standard deviations, but the projection and the last matrix are Glorot's."""
    model: Any = build_model(section("electra", "embedding_size=32"), 700, 1)
    small, large = 2 * 0.05, (6 / (48 + 32)) ** 0.5
    assert float(model.discriminator.encoder.widen.weight.abs().max()) == pytest.approx(large, rel=0.02)
    assert float(model.discriminator.prediction.weight.abs().max()) == pytest.approx((6 / 49) ** 0.5, rel=0.1)
    for weight in (model.discriminator.dense.weight, model.mlm_head.dense.weight, shared_table(model)):
        assert 0.9 * small < float(weight.abs().max()) <= small


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.family=electra", "model.generator_size=0.001"], "a generator of width 0 with 1 heads"),
        (
            ["model.family=electra", "model.generator_size=0.41", "model.num_attention_heads=8"],
            "a generator of width 52 with 3 heads",
        ),
        (["model.generator_size=0.5"], r'model\.generator_size belongs to "electra"; model\.family is "bert"'),
        (["model.discriminator_weight=3"], r'model\.discriminator_weight belongs to "electra"'),
        (["model.family=electra", "objective.kind=clm"], r'objective.kind "clm" is not for model.family "electra"'),
    ],
)
def test_recipes_that_cannot_be(changes: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe("tests/recipes/small_bert.toml", changes)
