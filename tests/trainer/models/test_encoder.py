"""Every family against transformers' own with random weights, and its packing against each sequence alone."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from schemas.errors import DataError, UsageError
from schemas.masking import Masking
from schemas.vocabulary import read_vocabulary
from tests.conftest import rows
from tests.small_models import (
    FAMILIES,
    alone,
    as_theirs,
    close,
    gradient,
    mlm_logits,
    padded,
    pair_logits,
    random_model,
    section,
    write_hf,
)
from tests.trainer.models.test_attention import batch_of
from trainer.build_model import notes
from trainer.config.load import load_recipe
from trainer.data.batches import pad_to_shape, shape_for
from trainer.data.folder import PairFolder
from trainer.data.order import build_sources
from trainer.data.share import RankShare
from trainer.data.stream import MaskingSchedule, Stream
from trainer.describe import describe_recipe
from trainer.models.batch import PackedBatch
from trainer.models.families import encoder_shape
from trainer.models.hf_load import warm_start
from trainer.models.hf_names import constant_tensors, to_hf
from trainer.models.pretraining import PretrainingModel
from trainer.models.starting_weights import build_model


def micro_batches(pairs: Path, share: RankShare) -> list[PackedBatch]:
    """One rank's part of the first global batch."""
    stream = Stream(build_sources([PairFolder(str(pairs))], None, 0, False), share, MaskingSchedule(Masking()), 0)
    try:
        return stream.batch(0)
    finally:
        stream.close()


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, pairs: Path, byte_rows: Path, tmp_path_factory) -> SimpleNamespace:
    """A family's model, the same one in transformers, and a batch of twelve rows of its kind of pairs."""
    path = byte_rows if request.param == "roberta" else pairs
    folder = PairFolder(str(path))
    batch = micro_batches(path, RankShare(0, 1, 1, 12))[0]
    model = random_model(section(request.param), folder.vocabulary)
    theirs = as_theirs(model, folder.vocabulary, tmp_path_factory.mktemp(request.param))
    assert not theirs.training and theirs.dtype == torch.float32
    inputs, place = padded(batch, model.shape.type_vocab_size, folder.vocabulary.special_id("pad"))
    return SimpleNamespace(
        family=request.param,
        model=model,
        theirs=theirs,
        batch=batch,
        inputs=inputs,
        place=place,
        vocabulary=folder.vocabulary,
        path=path,
    )


def test_hidden_states_and_logits_equal_transformers(case) -> None:
    output = case.theirs(**case.inputs, output_hidden_states=True)
    hidden_TD = case.model.encoder(case.batch)
    close(f"{case.family}, hidden states", hidden_TD, output.hidden_states[-1][case.place])
    mlm_KV, pair_S2 = case.model.logits(case.batch)
    theirs_KV = mlm_logits(output)[case.place][case.batch.masked_positions_K]
    close(f"{case.family}, masked LM logits", mlm_KV, theirs_KV)
    theirs_S2 = pair_logits(output)
    assert (pair_S2 is None) == (theirs_S2 is None) == (not case.model.shape.pair_head)
    if pair_S2 is not None and theirs_S2 is not None:
        close(f"{case.family}, pair logits", pair_S2, theirs_S2)


def test_loss_and_gradients_equal_transformers(case) -> None:
    model = case.model
    batch = case.batch
    labels = torch.full_like(case.inputs["input_ids"], -100)
    labels[case.place[0][batch.masked_positions_K], case.place[1][batch.masked_positions_K]] = batch.labels_K
    name = {"albert": "sentence_order_label"}.get(case.family, "next_sentence_label")
    pair_labels = {name: batch.pair_labels_S} if model.shape.pair_head else {}
    expected = case.theirs(**case.inputs, labels=labels, **pair_labels).loss
    losses = model(batch)
    loss = losses.mlm_sum / len(batch.masked_positions_K) + losses.pair_sum / max(1, model.labeled_pairs(batch))
    close(f"{case.family}, loss", loss, expected)
    model.zero_grad()
    case.theirs.zero_grad()
    expected.backward()
    loss.backward()
    gradients = to_hf({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, model.shape)
    theirs = {name: p for name, p in case.theirs.named_parameters() if name not in constant_tensors(model.shape)}
    assert gradients.keys() == theirs.keys()
    pad = case.vocabulary.special_id("pad")
    furthest = max(float((found - theirs[name].grad).abs().max()) for name, found in gradients.items())
    print(f"{case.family}, gradient: {furthest:.1e}")
    for name, found in gradients.items():
        torch.testing.assert_close(found, theirs[name].grad, atol=1e-5, rtol=1e-4, msg=f"{name}, pad {pad}")


def test_a_packed_batch_computes_what_each_sequence_does_alone(case) -> None:
    """Outputs, loss and gradients."""
    model = case.model
    batch = case.batch
    together = model(batch)
    gradients = gradient(model, together.mlm_sum + together.pair_sum)
    mlm_KV, pair_S2 = model.logits(batch)
    sums = torch.zeros(())
    apart = []
    for s in range(len(batch.sequence_starts_S)):
        mlm_alone, pair_alone = model.logits(alone(batch, s))
        apart.append(mlm_alone)
        if pair_S2 is not None:
            torch.testing.assert_close(pair_S2[s : s + 1], pair_alone, atol=1e-5, rtol=1e-5)
        losses = model(alone(batch, s))
        sums = sums + losses.mlm_sum + losses.pair_sum
    close(f"{case.family}, logits, alone", mlm_KV, torch.cat(apart))
    close(f"{case.family}, loss, alone", together.mlm_sum + together.pair_sum, sums, atol=1e-4, rtol=1e-6)
    close(f"{case.family}, gradient, alone", gradient(model, sums), gradients, atol=1e-4, rtol=1e-5)


def test_what_fills_a_fixed_shape_changes_nothing(case) -> None:
    shape = shape_for(512, 25.0, 32, 0.15, padded=False)
    filled = pad_to_shape(case.batch, shape, case.vocabulary.special_id("pad"))
    assert len(filled.ids_T) == 512 > len(case.batch.ids_T)
    one = case.model(case.batch)
    other = case.model(filled)
    torch.testing.assert_close(other.stacked(), one.stacked(), atol=1e-4, rtol=1e-6)


def test_recomputed_layers_have_the_same_gradient(case) -> None:
    """With dropout, too: a layer that is computed again draws the same one."""
    model = random_model(
        section(case.family, "hidden_dropout_prob=0.2", "attention_probs_dropout_prob=0.2"), case.vocabulary
    ).train()
    found = []
    for recompute in (False, True):
        model.encoder.recompute = recompute
        torch.manual_seed(0)
        losses = model(case.batch)
        found.append(gradient(model, losses.mlm_sum + losses.pair_sum))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)


def test_labels_that_a_family_does_not_predict_are_told_and_not_counted(pairs: Path) -> None:
    folder = PairFolder(str(pairs))
    batch = micro_batches(pairs, RankShare(0, 1, 1, 12))[0]
    counts = {}
    for family in ("bert", "roberta"):
        recipe = load_recipe("tests/recipes/small_bert.toml", [f"model.family={family}"])
        model = build_model(recipe.model, folder.vocabulary.size, 0)
        counts[family] = model.labeled_pairs(batch)
        message = " ".join(notes(recipe, [folder], model))
        assert (message == f"The pair labels of {pairs} are not predicted: roberta has no pair head.") == (
            not counts[family]
        )
        assert (model(batch).pair_sum.item() > 0) == (family == "bert")
    assert counts == {"bert": 12, "roberta": 0}


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("bert", [], "NSP, which bert is made for, needs pairs of --objective nsp."),
        ("albert", [], "SOP, which albert is made for, needs pairs of --objective sop."),
        ("electra", [], ""),
        ("bert", ["objective.kind=clm"], ""),
        ("bert", ["model.init_from=some/bert"], ""),
    ],
)
def test_a_pair_objective_that_the_pairs_lack_is_named(
    command, text: Path, vocab: Path, family: str, changes: list[str], named: str
) -> None:
    single_segments = rows(command, "single_segments", text, vocab, "full_sentences")
    changes = [f"model.family={family}", f"data.pairs={single_segments}", *changes]
    recipe = load_recipe("tests/recipes/small_bert.toml", changes)
    folder = PairFolder(str(single_segments))
    found = notes(recipe, [folder], build_model(recipe.model, folder.vocabulary.size, 0))
    begins = f"{single_segments} has full_sentences, so no pair objective is trained: "
    assert found == ([begins + named] if named else [])

    assert describe_recipe(recipe).get("missing", "") == "".join(found)


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("bert", "model.num_attention_heads=5", "model.num_attention_heads 5 does not divide model.hidden_size 48"),
        ("albert", "model.num_hidden_groups=3", "model.num_hidden_groups 3 does not divide model.num_hidden_layers 4"),
        (
            "bert",
            "model.embedding_size=24",
            'model.embedding_size belongs to "albert" and "electra"; model.family is "bert"',
        ),
        ("bert", "model.sharing=attention", 'model.sharing belongs to "albert"'),
        ("gpt", "run.seed=0", "model.family: .*'megatron-bert'.*, found 'gpt'"),
    ],
)
def test_shapes_that_cannot_be(family: str, change: str, message: str) -> None:
    small = [
        "model.hidden_size=48",
        "model.num_attention_heads=3",
        "model.num_hidden_layers=4",
        f"model.family={family}",
    ]
    with pytest.raises(UsageError, match=message):
        load_recipe("tests/recipes/small_bert.toml", [*small, change])


SHARINGS = ("all", "attention", "feed_forward", "none")

PUBLISHED = {
    (768, "all"): 31,
    (768, "attention"): 83,
    (768, "feed_forward"): 57,
    (768, "none"): 108,
    (128, "all"): 12,
    (128, "attention"): 64,
    (128, "feed_forward"): 38,
    (128, "none"): 89,
}
"""Millions of parameters of ALBERT-base by embedding size and sharing (arXiv:1909.11942, table 4)."""


@pytest.mark.parametrize(("embedding_size", "sharing"), PUBLISHED)
def test_the_paper_s_parameter_counts(embedding_size: int, sharing: str) -> None:
    changes = [f"model.embedding_size={embedding_size}", f"model.sharing={sharing}"]
    recipe = load_recipe("trainer/recipes/albert_base.toml", changes)
    with torch.device("meta"):
        model = PretrainingModel(encoder_shape(recipe.model, 30_000))

    # The rows of the table count the pooler where anything is shared, and not where nothing is. The matrix that
    # widens embeddings is there only where it makes them smaller.
    left_out = ["widen"] if embedding_size == 768 else []
    left_out += ["pooler"] if sharing == "none" else []
    parameters = model.encoder.named_parameters()
    counted = sum(weight.numel() for name, weight in parameters if not any(part in name for part in left_out))
    assert round(counted / 1e6) == PUBLISHED[embedding_size, sharing]


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("groups", [1, 2])
def test_transformers_computes_the_same_with_copies(vocab: Path, tmp_path: Path, sharing: str, groups: int) -> None:
    """It can share only whole layers, so what shares less is exported as separate ones, and read back as shared."""
    vocabulary = read_vocabulary(str(vocab))
    chosen = section("albert", f"sharing={sharing}", f"num_hidden_groups={groups}")
    model = random_model(chosen, vocabulary)
    theirs = as_theirs(model, vocabulary, tmp_path)
    ids = torch.randint(5, vocabulary.size, (1, 12))

    batch = batch_of([12])
    batch.ids_T.copy_(ids[0])
    expected = theirs(ids).prediction_logits[0, batch.masked_positions_K]
    torch.testing.assert_close(model.logits(batch)[0], expected, atol=1e-5, rtol=1e-5)

    fresh = build_model(chosen, vocabulary.size, 7)
    assert warm_start(fresh, str(tmp_path), vocabulary) == []
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("sharing", ["attention", "feed_forward"])
def test_a_folder_that_does_not_share_is_refused(vocab: Path, tmp_path: Path, sharing: str) -> None:
    vocabulary = read_vocabulary(str(vocab))
    separate = random_model(section("albert", "sharing=none", "num_hidden_groups=1"), vocabulary)
    write_hf(separate, vocabulary, tmp_path)
    shared = build_model(section("albert", f"sharing={sharing}", "num_hidden_groups=1"), vocabulary.size, 0)
    with pytest.raises(DataError, match=r"is not equal to .*model\.sharing makes one tensor"):
        warm_start(shared, str(tmp_path), vocabulary)
