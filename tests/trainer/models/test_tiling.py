"""A model filled with tiles of a smaller one computes what that one does, or the run says why it cannot."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from schemas.errors import DataError, UsageError
from schemas.vocabulary import read_vocabulary
from tests.small_models import FAMILIES, SMALL_VOCABULARY, random_model, section, vocabulary_of, write_hf
from tests.trainer.conftest import saved
from tests.trainer.models.test_attention import batch_of
from trainer.config.load import load_recipe
from trainer.config.schema import ModelSection
from trainer.models.batch import PackedBatch
from trainer.models.electra import parts_of
from trainer.models.families import encoder_shape
from trainer.models.pretraining import PretrainingModel
from trainer.models.starting_weights import build_model
from trainer.models.tiling import places_along, shares, source_name, tile_model, tile_places

GROWN = ["hidden_size=80", "num_attention_heads=5", "intermediate_size=131", "num_hidden_layers=10"]
GROWN_BY_FAMILY = {
    # Two heads of keys instead of one, each of three heads of queries.
    "eurobert": ["hidden_size=96", "num_attention_heads=6", "num_key_value_heads=2"],
    "albert": ["embedding_size=30", "num_hidden_groups=5"],
    "electra": ["embedding_size=30", "hidden_size=96", "num_attention_heads=6", "generator_size=0.5"],
}
MULTIPLE = {
    "hidden_size": 48,
    "num_attention_heads": 3,
    "intermediate_size": 80,
}
MULTIPLE_BY_FAMILY = {
    "eurobert": {"num_key_value_heads": 1},
    "albert": {"embedding_size": 24},
    "electra": {"hidden_size": 64, "num_attention_heads": 4, "embedding_size": 24},
}
"""The sizes that grow with the width, as `small_section` has them."""

ELECTRA = ["hidden_size=64", "num_attention_heads=4", "embedding_size=24", "generator_size=0.5"]


def small_section(family: str, *changes: str) -> ModelSection:
    return section(family, *(ELECTRA if family == "electra" else []), *changes)


def large_section(family: str, *changes: str) -> ModelSection:
    return section(family, *GROWN, *GROWN_BY_FAMILY.get(family, []), *changes)


def multiple_section(family: str, factor: int, *changes: str) -> ModelSection:
    """So many times as wide as `small_section`, and as deep."""
    sizes = MULTIPLE | MULTIPLE_BY_FAMILY.get(family, {})
    wide = [f"{name}={size * factor}" for name, size in sizes.items()]
    return small_section(family, *wide, *changes)


def write_parts(model: PretrainingModel, folder: Path) -> Path:
    """The folder of a model, with ELECTRA's generator inside."""
    for subfolder, part in parts_of(model).items():
        write_hf(part, SMALL_VOCABULARY, folder / subfolder)  # type: ignore[arg-type]
    return folder


def fresh(model: ModelSection) -> PretrainingModel:
    return build_model(model, SMALL_VOCABULARY.size, 5, SMALL_VOCABULARY.special_id("mask"))


def weights(model: PretrainingModel) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters(remove_duplicate=False)}


# The rule


def test_a_smaller_axis_lies_in_the_middle_and_repeats_in_whole_heads() -> None:
    assert tile_places(7, 3).tolist() == [1, 2, 0, 1, 2, 0, 1]
    assert tile_places(10, 4, block=2).tolist() == [2, 3, 0, 1, 2, 3, 0, 1, 2, 3]

    # Two heads of keys in place of one, each of three heads of queries, of two values each.
    shape = replace(encoder_shape(small_section("eurobert"), 60), hidden_size=6, num_attention_heads=3)
    rows_P = places_along("encoder.layers.0.attention.qkv.weight", 0, (20, 10), shape).tolist()
    assert rows_P == [*range(6), *range(6), 6, 7, 6, 7, 8, 9, 8, 9]
    assert places_along("encoder.layers.0.up.weight", 0, (6, 4), shape).tolist() == [0, 1, 0, 2, 3, 2]


def test_duplicates_have_unequal_shares_of_a_column() -> None:
    torch.testing.assert_close(shares(torch.tensor([1, 0, 1])), torch.tensor([0.4, 1.0, 0.6]))
    torch.testing.assert_close(shares(torch.tensor([0, 0, 0])), torch.tensor([0.8, 1.0, 1.2]) / 3)


@pytest.mark.parametrize("family", [*FAMILIES, "electra"])
def test_every_weight_of_any_larger_model_is_filled(family: str, tmp_path: Path) -> None:
    described = large_section(family)
    large = fresh(described)
    before = weights(large)
    folder = write_parts(random_model(small_section(family), SMALL_VOCABULARY), tmp_path)
    assert tile_model(large, described, str(folder), SMALL_VOCABULARY) == []

    # ModernBERT's first layer has no norm before attention, and layer 1 of 10 is made from layer 0 of 4.
    unfilled = {name for name, weight in weights(large).items() if torch.equal(weight, before[name])}
    assert unfilled == ({"encoder.layers.1.attention_norm.weight"} if family == "modernbert" else set())


@pytest.mark.parametrize("sharing", ["attention", "feed_forward", "none"])
def test_albert_s_other_sharings(sharing: str, tmp_path: Path) -> None:
    small = random_model(section("albert", f"sharing={sharing}"), SMALL_VOCABULARY)
    described = section("albert", *GROWN, f"sharing={sharing}")
    large = fresh(described)
    before = weights(large)
    assert tile_model(large, described, str(write_parts(small, tmp_path)), SMALL_VOCABULARY) == []
    assert not {name for name, weight in weights(large).items() if torch.equal(weight, before[name])}


def test_layers_are_spread_over_the_depth() -> None:
    shape = encoder_shape(section("modernbert"), 60)

    def sources_of(layers: int, small_layers: int) -> list[int]:
        shapes = [replace(shape, num_hidden_layers=depth) for depth in (layers, small_layers)]
        names = [source_name(f"encoder.layers.{layer}.up.weight", *shapes) for layer in range(layers)]
        return [int(name.split(".")[2]) for name in names]

    modernbert_large = sources_of(28, 22)
    assert modernbert_large[:9] == [0, 1, 2, 2, 3, 4, 5, 6, 6] and modernbert_large[-2:] == [20, 21]
    for small in range(1, 13):
        for layers in range(small, 40):
            sources = sources_of(layers, small)
            assert sources == sorted(sources) and set(sources) <= set(range(small))
            assert sources[0] == 0 and (layers > small or sources == list(range(small)))


def test_what_the_folder_lacks_stays_fresh(tmp_path: Path) -> None:
    """A bare encoder has no heads, and an ELECTRA without a generator still has the embeddings."""
    bert = write_parts(random_model(section("bert"), SMALL_VOCABULARY), tmp_path / "bert")
    file = bert / "model.safetensors"
    bare = {name: tensor for name, tensor in load_file(file).items() if not name.startswith("cls.")}
    save_file(bare, file, {"format": "pt"})
    described = large_section("bert")
    large = fresh(described)
    before = weights(large)
    assert tile_model(large, described, str(bert), SMALL_VOCABULARY) == ["mlm_head", "pair_head"]
    for name, weight in weights(large).items():
        assert torch.equal(weight, before[name]) == name.startswith(("mlm_head.", "pair_head.")), name

    electra = write_parts(random_model(small_section("electra"), SMALL_VOCABULARY), tmp_path / "electra")
    shutil.rmtree(electra / "generator")
    described = large_section("electra")
    large = fresh(described)
    before = weights(large)
    assert tile_model(large, described, str(electra), SMALL_VOCABULARY) == ["generator"]
    for name, weight in weights(large).items():
        is_filled = name.startswith("discriminator.") or ".embeddings." in name
        assert torch.equal(weight, before[name]) != is_filled, name


# The same outputs, and training


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
    logits = [logits for part in parts_of(model.eval()).values() for logits in part.logits(batch)]
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
        described = multiple_section(family, factor, inner, *changes)
        large = fresh(described)
        assert tile_model(large, described, str(folder), SMALL_VOCABULARY) == []
        assert_same_logits(large, small)


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
    described = multiple_section(family, 2)
    large = fresh(described).train()
    tile_model(large, described, str(write_parts(small, tmp_path)), SMALL_VOCABULARY)
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


# What cannot be tiled


REFUSED = {
    "larger": (
        "bert",
        ["hidden_size=32", "num_attention_heads=2", "num_hidden_layers=3"],
        "into the recipe's model: num_hidden_layers is 4, the recipe makes it 3; hidden_size is 48",
    ),
    "wider heads": (
        "bert",
        ["hidden_size=96"],
        "head_size is 16, the recipe makes it 32. Give another folder, or change [model]",
    ),
    "other positions": ("bert", ["max_position_embeddings=64"], "embeddings is 128, the recipe makes it 64"),
    "another family": ("bert", ["family=megatron-bert"], "model_type is 'bert', the recipe makes it 'megatron-bert'"),
    "more queries of a key": (
        "eurobert",
        ["hidden_size=96", "num_attention_heads=6", "num_key_value_heads=3"],
        "queries_of_key is 3, the recipe makes it 2",
    ),
    "embeddings as wide as layers": (
        "electra",
        [*GROWN, *GROWN_BY_FAMILY["electra"], "embedding_size=96"],
        "factorized is True, the recipe makes it False",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_models_are_refused(case: str, tmp_path: Path) -> None:
    family, changes, message = REFUSED[case]
    folder = write_parts(random_model(small_section(family), SMALL_VOCABULARY), tmp_path)
    described = section(family, *changes)
    large = fresh(described)
    before = weights(large)
    with pytest.raises(UsageError, match=re.escape(message)):
        tile_model(large, described, str(folder), SMALL_VOCABULARY)
    assert all(torch.equal(weight, before[name]) for name, weight in weights(large).items())


def test_a_discriminator_alone_needs_no_generator_that_fits(tmp_path: Path) -> None:
    """A generator of the recipe's share of the folder's width would have heads of another size."""
    small = random_model(section("electra", "hidden_size=96", "num_attention_heads=6"), SMALL_VOCABULARY)
    folder = write_parts(small, tmp_path)
    shutil.rmtree(folder / "generator")
    described = section("electra", "hidden_size=192", "num_attention_heads=12", "generator_size=0.25")
    large = fresh(described)
    assert "generator" in tile_model(large, described, str(folder), SMALL_VOCABULARY)


def test_another_vocabulary_and_a_broken_size_are_refused(tmp_path: Path) -> None:
    folder = write_parts(random_model(section("bert"), SMALL_VOCABULARY), tmp_path)
    described = large_section("bert")
    other = vocabulary_of(SMALL_VOCABULARY.size + 1)
    with pytest.raises(DataError, match="has a vocabulary of 60 tokens, the pairs of 61"):
        tile_model(build_model(described, other.size, 5), described, str(folder), other)

    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": 0}))
    with pytest.raises(DataError, match=r"config\.json: num_attention_heads must be a whole number above 0, found 0"):
        tile_model(fresh(described), described, str(folder), SMALL_VOCABULARY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.init_from=a"], "model.init_from a and model.tile_from small both give the first weights"),
        (["model.family=xlnet"], 'model.tile_from is not for model.family "xlnet"'),
    ],
)
def test_recipes_that_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        load_recipe("tests/recipes/small_bert.toml", ["model.tile_from=small", *settings])


# Runs


def test_runs_that_begin_with_tiles(training, vocab: Path, tmp_path: Path) -> None:
    """On two ranks that share every weight (ZeRO 3); a resume on one does not look at the folder."""
    vocabulary = read_vocabulary(str(vocab))
    small = random_model(section("bert"), vocabulary)
    folder = write_hf(small, vocabulary, tmp_path / "hf")
    expected = build_model(large_section("bert"), vocabulary.size, 5)
    tile_model(expected, large_section("bert"), str(folder), vocabulary)

    common: dict[str, object] = {"optimizer__lr": 1e-12}
    common |= dict(f"model.{setting}".split("=") for setting in GROWN)
    out = tmp_path / "run"
    begun = training.trained(2, out, **common, model__tile_from=folder, run__stop_at=1, engine__zero_stage=3)
    assert f"Beginning with tiles of the weights of {folder}." in begun.stdout
    weights = saved(out / "checkpoints/step-00000001")
    for name, weight in expected.named_parameters():
        torch.testing.assert_close(weights[name], weight.detach(), atol=1e-9, rtol=0)

    resumed = training.trained(1, out, **common, model__tile_from=tmp_path / "gone", run__stop_at=2)
    assert "Resuming from" in resumed.stdout
