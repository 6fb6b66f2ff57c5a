"""Our BERT against transformers' own, with random weights, and its packing against each sequence alone."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForPreTraining

from schemas.masking import Masking
from trainer.models.huggingface import bert_config, bert_weights
from trainer.models.packing import PackedBatch
from trainer.models.pretraining import PretrainingModel, build_model, encoder_shape
from trainer.recipe import load_recipe
from trainer.stream.batches import Drawing, Share, Stream
from trainer.stream.reading import PairFolder
from trainer.stream.sources import build_sources

CHANGES = ["model.width=48", "model.heads=3", "model.feedforward=80", "model.layers=3", "model.initial_std=0.05"]


@pytest.fixture
def batch(pairs: Path) -> PackedBatch:
    stream = Stream(build_sources([PairFolder(str(pairs))], None, 0, False), Share(0, 1, 1, 12), Drawing(Masking()), 0)
    try:
        return stream.batch(0)[0]
    finally:
        stream.close()


@pytest.fixture
def model(pairs: Path) -> PretrainingModel:
    """Random in every weight, biases and norms too, so that a confusion of names shows.

    Of a trained model's size: with weights ten times as large float32 itself rounds by more than the 1e-5 asked for.
    """
    section = load_recipe("trainer/recipes/tiny.toml", CHANGES).model
    built = build_model(section, PairFolder(str(pairs)).vocabulary.size, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return built.eval()


@pytest.fixture
def theirs(model: PretrainingModel, pairs: Path, tmp_path: Path):
    import json

    vocabulary = PairFolder(str(pairs)).vocabulary
    shape = encoder_shape(load_recipe("trainer/recipes/tiny.toml", CHANGES).model, vocabulary.size)
    (tmp_path / "config.json").write_text(json.dumps(bert_config(shape, vocabulary)))
    save_file(bert_weights(model.state_dict(), shape.layers), tmp_path / "model.safetensors", {"format": "pt"})
    return AutoModelForPreTraining.from_pretrained(tmp_path).eval()


def padded(batch: PackedBatch):
    """The batch as transformers wants it, and where the packed tokens lie in it."""
    place = (batch.sequence_T, batch.positions_T)
    ids = torch.zeros(len(batch.first_S), batch.longest, dtype=torch.long)
    segments, attention = ids.clone(), ids.clone()
    ids[place], segments[place], attention[place] = batch.ids_T, batch.segments_T, 1
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": attention}, place


def test_logits_equal_transformers(model, theirs, batch) -> None:
    inputs, place = padded(batch)
    output = theirs(**inputs)
    mlm_KV, pair_S2 = model.logits(batch)
    torch.testing.assert_close(mlm_KV, output.prediction_logits[place][batch.masked_K], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(pair_S2, output.seq_relationship_logits, atol=1e-5, rtol=1e-5)


def test_loss_and_gradients_equal_transformers(model, theirs, batch) -> None:
    inputs, place = padded(batch)
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[place[0][batch.masked_K], place[1][batch.masked_K]] = batch.labels_K
    expected = theirs(**inputs, labels=labels, next_sentence_label=batch.pair_labels_S).loss
    losses = model(batch)
    loss = losses.mlm_sum / len(batch.masked_K) + losses.pair_sum / len(batch.pair_labels_S)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    expected.backward()
    loss.backward()
    gradients = bert_weights({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, 3)
    theirs_by_name = dict(theirs.named_parameters())
    assert len(gradients) == len(theirs_by_name)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, theirs_by_name[name].grad, atol=1e-5, rtol=1e-4, msg=name)


def test_a_packed_batch_computes_what_each_sequence_does_alone(model, batch) -> None:
    mlm_KV, pair_S2 = model.logits(batch)
    for s in range(len(batch.first_S)):
        tokens, masks = batch.sequence_T == s, batch.sequence_T[batch.masked_K] == s
        alone = PackedBatch(
            ids_T=batch.ids_T[tokens],
            segments_T=batch.segments_T[tokens],
            positions_T=batch.positions_T[tokens],
            sequence_T=torch.zeros(int(tokens.sum()), dtype=torch.long),
            first_S=torch.zeros(1, dtype=torch.long),
            longest=int(tokens.sum()),
            masked_K=batch.masked_K[masks] - batch.first_S[s],
            labels_K=batch.labels_K[masks],
            pair_labels_S=batch.pair_labels_S[s : s + 1],
            tokens=int(tokens.sum()),
            predicted=int(masks.sum()),
            paired=1,
        )
        mlm_alone, pair_alone = model.logits(alone)
        torch.testing.assert_close(mlm_KV[masks], mlm_alone, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(pair_S2[s : s + 1], pair_alone, atol=1e-5, rtol=1e-5)


def test_published_parameter_counts() -> None:
    section = load_recipe("trainer/recipes/bert_base.toml", []).model
    with torch.device("meta"):
        model = PretrainingModel(encoder_shape(section, 30522))
    counts = [sum(p.numel() for p in part.parameters()) for part in (model.encoder, model)]
    assert counts == [109_482_240, 110_106_428]


def test_initial_weights_follow_from_the_seed_alone() -> None:
    section = load_recipe("trainer/recipes/tiny.toml", ["model.initial_std=0.02"]).model
    one, two, other = (build_model(section, 500, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    matrices = torch.cat([w.flatten() for name, w in one.items() if w.dim() > 1])
    assert not torch.equal(matrices, torch.cat([w.flatten() for w in other.values() if w.dim() > 1]))
    # a normal truncated at two deviations has 0.8796 of its deviation
    assert matrices.std() == pytest.approx(0.02 * 0.8796, rel=0.01)
    assert matrices.abs().max() <= 0.04
    assert all(
        (w == (1 if "norm" in name and name.endswith("weight") else 0)).all() for name, w in one.items() if w.dim() == 1
    )
