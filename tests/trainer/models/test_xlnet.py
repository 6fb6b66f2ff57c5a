"""XLNet against transformers' own, its streams against leaks, and its kernels against each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.errors import UsageError
from schemas.masking import KINDS, Masking
from schemas.randomness import key
from schemas.vocabulary import read_vocabulary
from tests.small_models import as_theirs, close, gradient, random_model, section, write_hf
from tests.xlnet_batches import keys, random_batch, random_rows, singles, their_inputs
from trainer.config.load import load_recipe
from trainer.data.batches import BatchShape, pack_permuted, pad_to_shape
from trainer.describe import activation_bytes, working_bytes
from trainer.micro_batches import trial_batch
from trainer.models import xlnet_attention
from trainer.models.batch import PackedBatch
from trainer.models.families import encoder_shape
from trainer.models.hf_load import warm_start
from trainer.models.hf_names import from_hf, to_hf
from trainer.models.pretraining import PretrainingModel
from trainer.models.starting_weights import build_model
from trainer.optim.optimizers import parameter_groups

ROWS = [(10, 9), (6, 0), (20, 17), (7, 30), (4, 4), (12, 1)]


@pytest.fixture(scope="module")
def case(vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model, the same one in transformers, and a batch of six rows in which every target sees something."""
    vocabulary = read_vocabulary(str(vocab))
    model = random_model(section("xlnet"), vocabulary)
    theirs = as_theirs(model, vocabulary, tmp_path_factory.mktemp("xlnet"))
    batch = random_batch(vocabulary, ROWS)
    return SimpleNamespace(vocabulary=vocabulary, model=model, theirs=theirs, batch=batch)


# Parity with transformers


def test_both_streams_and_logits_equal_transformers(case) -> None:
    outputs = [case.theirs(**their_inputs(row), output_hidden_states=True) for row in singles(case.batch)]
    # They list content and query stream of each layer in turn; the last content stream takes part in nothing.
    query_KD = torch.cat([output.hidden_states[-1][0] for output in outputs])
    close("xlnet, query stream", case.model.encoder(case.batch, case.batch.masked_positions_K), query_KD)
    logits_KV, pair_logits = case.model.logits(case.batch)
    assert pair_logits is None
    close("xlnet, logits", logits_KV, torch.cat([output.logits[0] for output in outputs]))
    content_TD = torch.cat([output.hidden_states[-2][0] for output in outputs])
    close("xlnet, content stream", case.model.encoder(case.batch), content_TD)


def test_without_an_order_it_is_the_encoder_that_fine_tuning_reads(case) -> None:
    plain = replace(case.batch, order_T=None)
    rows = singles(case.batch)
    expected_TD = [
        case.theirs.transformer(row.ids_T[None], token_type_ids=row.segments_T[None]).last_hidden_state[0]
        for row in rows
    ]
    close("xlnet, hidden states", case.model.encoder(plain), torch.cat(expected_TD))


def test_loss_and_gradients_equal_transformers(case) -> None:
    case.theirs.zero_grad()
    expected = 0.0
    for row in (row for row in singles(case.batch) if row.predicted):
        # Their loss is a mean over a row's targets.
        expected += float(row.predicted) * case.theirs(**their_inputs(row), labels=row.labels_K[None]).loss
    expected.backward()  # type: ignore[attr-defined]
    losses = case.model(case.batch)
    close("xlnet, loss", losses.mlm_sum, expected, atol=1e-4)  # type: ignore[arg-type]

    case.model.zero_grad()
    (losses.mlm_sum / case.batch.predicted).backward()
    gradients = to_hf({name: p.grad for name, p in case.model.named_parameters()}, case.model.shape)
    theirs = dict(case.theirs.named_parameters())
    assert gradients.keys() == theirs.keys()
    furthest = 0.0
    for name, found in gradients.items():
        expected_gradient = theirs[name].grad / case.batch.predicted
        furthest = max(furthest, float((found - expected_gradient).abs().max()))
        torch.testing.assert_close(found, expected_gradient, atol=1e-5, rtol=1e-4, msg=name)
    print(f"xlnet, gradient: {furthest:.1e}")


def test_weights_go_over_and_back_and_a_run_begins_with_them(case, tmp_path: Path) -> None:
    ours = dict(case.model.named_parameters())
    back = from_hf(dict(case.theirs.named_parameters()), ours, case.model.shape)
    assert all(torch.equal(back[name], ours[name]) for name in ours)

    fresh = build_model(section("xlnet"), case.vocabulary.size, 5)
    # The published folders were trained with memory, with one rate of dropout for all.
    folder = write_hf(case.model, case.vocabulary, tmp_path, mem_len=384, reuse_len=256, dropout=0.1)
    assert warm_start(fresh, str(folder), case.vocabulary) == []
    assert all(torch.equal(weight, ours[name]) for name, weight in fresh.named_parameters())

    folder = write_hf(case.model, case.vocabulary, tmp_path, d_inner=81, attn_type="uni")
    with pytest.raises(UsageError, match="d_inner is 81, the recipe makes it 80; attn_type is 'uni'"):
        warm_start(fresh, str(folder), case.vocabulary)


# Nothing leaks


@pytest.fixture(scope="module")
def sharp(case) -> PretrainingModel:
    """Attention that looks at few tokens, so that one changed token shows."""
    changes = ("hidden_size=32", "num_attention_heads=2", "num_hidden_layers=2", "intermediate_size=48")
    return random_model(section("xlnet", *changes, "initializer_range=0.3"), case.vocabulary).double()


@settings(max_examples=25)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 14), st.integers(0, 14)), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    prob=st.sampled_from([1 / 6, 0.4, 0.9]),
    kind=st.sampled_from(KINDS),
    choice=st.integers(0, 1000),
)
def test_a_target_s_token_reaches_exactly_the_later_targets(case, sharp, lengths, seed, prob, kind, choice) -> None:
    """Never its own prediction nor an earlier one, and no other row; with every kind and share of targets."""
    rows = random_rows(case.vocabulary, lengths, seed)
    batch = pack_permuted(rows, keys(rows, seed), Masking(kind, prob), case.vocabulary)
    assume(batch.predicted)  # a budget of one token may not be enough for any word
    assert batch.order_T is not None
    k = choice % batch.predicted
    position = int(batch.masked_positions_K[k])

    is_other = case.vocabulary.ordinary_ids != int(batch.ids_T[position])
    other = int(case.vocabulary.ordinary_ids[is_other][seed % 100])
    changed = replace(batch, ids_T=batch.ids_T.index_fill(0, torch.tensor([position]), other))
    assert not torch.equal(changed.ids_T, batch.ids_T)

    with torch.no_grad():
        differs_K = (sharp.logits(changed)[0] != sharp.logits(batch)[0]).any(1)
    order_K = batch.order_T[batch.masked_positions_K]
    row_K = batch.sequence_T[batch.masked_positions_K]
    is_later_K = (row_K == row_K[k]) & (order_K > order_K[k])
    assert differs_K.tolist() == is_later_K.tolist()


def test_a_target_before_all_else_that_sees_nothing_is_a_guess(case, sharp) -> None:
    """transformers would let it see all tokens alike, itself included."""
    rows = random_rows(case.vocabulary, [(3, 0)])
    packed = pack_permuted(rows, keys(rows), Masking("token", 0.99), case.vocabulary)
    assert packed.predicted == 3
    batch = replace(packed, order_T=torch.tensor([2, 0, 1, 3, 4]))
    changed = replace(batch, ids_T=torch.tensor([7, 8, 9, 10, 11]))
    with torch.no_grad():
        one = sharp.logits(batch)[0]
        other = sharp.logits(changed)[0]
    assert (one == other).all(1).tolist() == [False, True, False]


# Packing, padding, kernels


def test_a_packed_batch_computes_what_each_sequence_does_alone(case) -> None:
    together = case.model(case.batch).mlm_sum
    apart = sum(case.model(row).mlm_sum for row in singles(case.batch))
    close("xlnet, loss, alone", together, apart, atol=1e-4, rtol=1e-6)  # type: ignore[arg-type]
    logits_KV = torch.cat([case.model.logits(row)[0] for row in singles(case.batch)])
    close("xlnet, logits, alone", case.model.logits(case.batch)[0], logits_KV)
    close("xlnet, gradient, alone", gradient(case.model, together), gradient(case.model, apart), atol=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("fill", [False, True])
def test_what_fills_a_fixed_shape_changes_nothing(case, fill: bool) -> None:
    longest = case.batch.longest
    shape = BatchShape(tokens=256, sequences=9, masked=40, longest=longest, padded=fill)
    filled = pad_to_shape(case.batch, shape, case.vocabulary.special_id("pad"))
    assert len(filled.ids_T) > case.batch.tokens and len(filled.masked_positions_K) == 40
    one = case.model(case.batch)
    other = case.model(filled)
    close("xlnet, filled", other.stacked(), one.stacked(), atol=1e-4)
    close("xlnet, filled, gradient", gradient(case.model, other.mlm_sum), gradient(case.model, one.mlm_sum), atol=1e-4)


def use_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute as on a GPU: all sequences in one grid."""

    def on_cpu(batch: PackedBatch, offsets, order_T: torch.Tensor):
        return [xlnet_attention._padded_grid(batch, offsets, order_T)]

    monkeypatch.setattr(xlnet_attention, "_single_sequences", on_cpu)


@pytest.mark.parametrize("layout", ["exact", "filled", "unknown number of targets"])
def test_the_padded_grid_computes_the_same(case, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    batch = case.batch
    if layout == "filled":
        shape = BatchShape(tokens=256, sequences=9, masked=40, longest=batch.longest + 3)
        batch = pad_to_shape(batch, shape, case.vocabulary.special_id("pad"))
    elif layout != "exact":
        batch = replace(batch, most_targets=0)
    expected = case.model(case.batch).mlm_sum
    expected_gradient = gradient(case.model, expected)
    expected_TD = case.model.encoder(case.batch)

    use_grid(monkeypatch)
    found = case.model(batch).mlm_sum
    close("xlnet, grid", found, expected, atol=1e-4)
    close("xlnet, grid, gradient", gradient(case.model, found), expected_gradient, atol=1e-4)
    close("xlnet, grid, content", case.model.encoder(batch)[: case.batch.tokens], expected_TD)


def test_recomputed_layers_have_the_same_gradient(case) -> None:
    """With dropout, too."""
    dropped = section("xlnet", "hidden_dropout_prob=0.2", "attention_probs_dropout_prob=0.2")
    model = random_model(dropped, case.vocabulary).train()
    found = []
    for model.encoder.recompute in (False, True):
        torch.manual_seed(0)
        found.append(gradient(model, model(case.batch).mlm_sum))
    close("xlnet, recomputed", found[0], found[1])
    torch.manual_seed(1)
    assert not torch.allclose(gradient(model, model(case.batch).mlm_sum), found[0])


def test_a_batch_without_targets_has_gradients_of_zero(case) -> None:
    batch = replace(
        case.batch,
        masked_positions_K=case.batch.masked_positions_K[:0],
        labels_K=case.batch.labels_K[:0],
        predicted=0,
        most_targets=0,
    )
    loss: torch.Tensor = case.model(batch).mlm_sum
    assert float(loss.detach()) == 0
    found = torch.autograd.grad(loss, list(case.model.parameters()), allow_unused=True)
    assert all(g is None or not g.any() for g in found)


def test_memory_counts_scores_and_targets() -> None:
    recipe = load_recipe("xlnet_base", [])
    shape = encoder_shape(recipe.model, 32_000)
    one_stream = replace(shape, two_streams=False)
    scores = 12 * 12 * 512 * 2
    assert activation_bytes(shape, recipe) > activation_bytes(one_stream, recipe) + scores
    assert working_bytes(shape, recipe) > working_bytes(one_stream, recipe)
    batch = trial_batch(shape, recipe, 4096, 400.0)
    assert batch.predicted == len(batch.masked_positions_K) >= 0.16 * len(batch.ids_T)
    assert int(torch.bincount(batch.sequence_T[batch.masked_positions_K]).max()) < 512 / 5


def test_initial_weights_are_drawn_and_biases_of_attention_not_decayed() -> None:
    model = build_model(section("xlnet", "hidden_size=96", "intermediate_size=384", "initializer_range=0.02"), 700, 1)
    groups = parameter_groups(model, 0.01)
    not_decayed = {id(p) for p in groups[1]["params"]}
    for name, weight in model.named_parameters():
        module, _, kind = name.rpartition(".")
        if kind == "weight" and module.endswith("norm"):
            assert (weight == 1).all()
        elif kind == "bias":
            assert (weight == 0).all()
        else:
            assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.05 if weight.numel() > 5000 else 0.3), name
        is_bias = kind == "bias" or kind in ("r_w_bias", "r_r_bias", "r_s_bias") or module.endswith("norm")
        assert (id(weight) in not_decayed) == is_bias, name
    first = torch.Generator().manual_seed(key(1, "initial weights") >> 1)
    expected = torch.empty(1, 96).normal_(0, 0.02, generator=first)
    assert torch.equal(next(model.parameters()), expected), "mask_emb is drawn first"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("masking.stored=true", 'masking.stored is not for model.family "xlnet", which masks nothing'),
        ("model.rope_base=10000.0", "model.rope_base belongs to "),
        ("objective.kind=clm", 'objective.kind "clm" is not for model.family "xlnet", whose attention follows'),
        ("model.hidden_size=33", 'model.hidden_size 33 is odd; positions in "xlnet"'),
    ],
)
def test_recipes_that_cannot_be(change: str, message: str) -> None:
    small = ["model.family=xlnet", "model.num_attention_heads=1", "masking.prob=0.15", change]
    with pytest.raises(UsageError, match=message):
        load_recipe("tests/recipes/small_bert.toml", small)
