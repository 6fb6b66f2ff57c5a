"""ELECTRA's two parts against transformers' own, the loss of both together, and published weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from schemas.errors import DataError
from tests.small_models import padded, random_model, write_hf
from tests.trainer.models.electra_models import electra, electra_case, one_row, shared_table
from trainer.data.batches import pad_to_shape, shape_for
from trainer.models.batch import PackedBatch
from trainer.models.hf_convert import to_hf
from trainer.models.parts import GENERATOR_FOLDER, parts_of
from trainer.models.pretraining import build_model
from trainer.models.replaced_tokens import replace_tokens, sample_from_softmax
from trainer.models.warm_start import warm_start_model


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


def check(what: str, found: torch.Tensor, expected: torch.Tensor, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    """Equal up to rounding; `pytest -s` shows how far."""
    print(f"electra, {what}: {float((found - expected).detach().abs().max()):.1e}")
    torch.testing.assert_close(found, expected, atol=atol, rtol=rtol)


def test_the_generator_equals_transformers(case) -> None:
    """Hidden states, logits, loss and gradient."""
    batch = case.batch
    inputs, place = padded(batch, 2, case.pad)
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[place[0][batch.masked_positions_K], place[1][batch.masked_positions_K]] = batch.labels_K
    output = case.theirs["generator"](**inputs, labels=labels, output_hidden_states=True)

    check("generator, hidden states", case.model.encoder(batch), output.hidden_states[-1][place])
    check("generator, logits", case.model.logits(batch)[0], output.logits[place][batch.masked_positions_K])
    loss = case.model(batch).mlm_sum / batch.predicted
    check("generator, loss", loss, output.loss)
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
    check("discriminator, hidden states", discriminator.encoder(seen), output.hidden_states[-1][place])
    logits_T, _ = discriminator.logits(seen)
    check("discriminator, logits", logits_T, output.logits[place])

    losses = case.model(case.batch)
    loss = losses.rtd_sum / case.batch.tokens
    check("discriminator, loss", loss, output.loss)
    assert losses.rtd_correct == ((logits_T > 0) == replaced_T).sum() and losses.replaced == replaced_T.sum()
    compare_gradients(case, "discriminator", loss, output.loss)


def compare_gradients(case: SimpleNamespace, name: str, loss: torch.Tensor, expected: torch.Tensor) -> None:
    """Of a part's loss: the other part, but for the embeddings, gets none from it."""
    part = case.parts[name]
    gradients = gradients_of(case.model, loss)
    assert all(not gradients[other].any() for other in gradients.keys() - set(part.names.values()))

    ours = to_hf({mine: gradients[whole] for mine, whole in part.names.items()}, part.model.shape)
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
    check("sums, alone", together.stacked(), sums, atol=1e-3, rtol=1e-6)
    apart = gradients_of(case.model, sum(losses.total() for losses in rows))  # type: ignore[arg-type]
    for name, gradient in gradients_of(case.model, together.total()).items():
        torch.testing.assert_close(gradient, apart[name], atol=1e-4, rtol=1e-4, msg=name)

    filled = pad_to_shape(case.batch, shape_for(512, 25.0, 32, 0.15, padded=False), case.pad)
    assert len(filled.ids_T) == 512 > len(case.batch.ids_T) and len(filled.labels_K) > len(case.batch.labels_K)
    check("sums, filled", case.model(filled).stacked(), together.stacked(), atol=1e-3, rtol=1e-6)


def test_recomputed_layers_have_the_same_gradient(case) -> None:
    model = random_model(electra("hidden_dropout_prob=0.2"), case.vocabulary).train()
    found = []
    for recompute in (False, True):
        for encoder in model.encoders():
            encoder.recompute = recompute
        torch.manual_seed(0)
        found.append(gradients_of(model, model(case.batch).total()))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)


def test_compiled_parts_compute_the_same(case) -> None:
    """Traced, without a compiler for the machine."""
    model = random_model(electra(), case.vocabulary)
    model.compile_parts(backend="eager")
    filled = pad_to_shape(case.batch, shape_for(512, 25.0, 32, 0.15, padded=False), case.pad)
    check("sums, compiled", model(filled).stacked(), case.model(filled).stacked(), atol=1e-3, rtol=1e-6)


# Published weights


@pytest.fixture
def published(case, tmp_path: Path) -> Path:
    for part in case.parts.values():
        write_hf(part.model, case.vocabulary, tmp_path / part.subfolder)
    return tmp_path


def test_a_pair_of_folders_is_where_a_run_begins(case, published: Path) -> None:
    fresh = build_model(electra(), case.vocabulary.size, 5)
    assert warm_start_model(fresh, str(published), case.vocabulary) == []
    ours = dict(case.model.named_parameters())
    assert all(torch.equal(weight, ours[name]) for name, weight in fresh.named_parameters())


def test_without_a_generator_that_part_begins_anew(case, tmp_path: Path) -> None:
    """As from google/electra-small-discriminator alone."""
    write_hf(case.parts["discriminator"].model, case.vocabulary, tmp_path)
    fresh = build_model(electra(), case.vocabulary.size, 5)
    assert warm_start_model(fresh, str(tmp_path), case.vocabulary) == [GENERATOR_FOLDER]
    ours = dict(case.model.named_parameters())
    equal = {name for name, weight in fresh.named_parameters() if torch.equal(weight, ours[name])}
    assert equal == set(case.parts["discriminator"].names.values())


def test_a_generator_of_another_pair_is_refused(case, published: Path) -> None:
    other = random_model(electra(), case.vocabulary)
    with torch.no_grad():
        shared_table(other).mul_(1.5)
    write_hf(parts_of(other)[1].model, case.vocabulary, published / GENERATOR_FOLDER)  # type: ignore[arg-type]
    fresh = build_model(electra(), case.vocabulary.size, 5)
    with pytest.raises(DataError, match=r"other token.weight embeddings than its subfolder generator"):
        warm_start_model(fresh, str(published), case.vocabulary)


def test_the_loss_is_the_mean_over_real_tokens(case) -> None:
    """By hand, without any of the model's own sums."""
    seen, replaced_T = sampled(case, case.batch)
    logits_T, _ = case.model.discriminator.logits(seen)
    by_hand = [
        F.softplus(-logit) if is_replaced else F.softplus(logit)
        for logit, is_replaced in zip(logits_T, replaced_T, strict=True)
    ]
    assert float(case.model(case.batch).rtd_sum) == pytest.approx(float(sum(by_hand)), rel=1e-5)
