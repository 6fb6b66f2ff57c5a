"""Starting weights from statistics: what each part replaces, what it computes, and that all else stays as drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from schemas.cooccurrences import count_contexts
from schemas.errors import UsageError
from schemas.manifest import Manifest
from schemas.statistics import Cooccurrences, Statistics
from tests.small_models import FAMILIES, section
from trainer.config.load import load_recipe, recipe_text
from trainer.config.schema import Recipe
from trainer.config.sections import ModelSection
from trainer.models.encoder import Attention
from trainer.models.families import encoder_shape
from trainer.models.starting_weights import drawn_weights, ignored_keys, make_identity, model_of, with_starting_weights

VOCABULARY_SIZE = 40
SPECIALS = 5


class SmallStatistics(Statistics):
    """Counts of 40 tokens, of which the first five are special and the last one never occurs. Token 1 is [UNK]."""

    def __init__(self) -> None:
        counts = np.arange(VOCABULARY_SIZE) * 10
        counts[:SPECIALS] = 0
        counts[1] = 5000
        counts[-1] = 0
        (pairs,) = self.cooccurrences()
        manifest = Manifest.model_construct()  # pyrefly: ignore[missing-argument]
        super().__init__("folder", manifest, counts, count_contexts(pairs, VOCABULARY_SIZE))

    def cooccurrences(self) -> Iterator[Cooccurrences]:
        rng = np.random.default_rng(0)
        first, second = np.triu_indices(VOCABULARY_SIZE - 1 - SPECIALS)
        kept = rng.random(len(first)) < 0.3
        yield Cooccurrences(
            (first[kept] + SPECIALS).astype(np.uint32),
            (second[kept] + SPECIALS).astype(np.uint32),
            rng.integers(1, 1000, kept.sum()),
        )


def recipe_of(model: ModelSection) -> Recipe:
    return load_recipe("tests/recipes/small_bert.toml", []).model_copy(update={"model": model})


def drawn_and_changed(model: ModelSection) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights as drawn, and with what [model] asks for."""
    shape = encoder_shape(model, VOCABULARY_SIZE, mask_id=4)
    with torch.device("meta"):
        empty = model_of(shape)

    recipe = recipe_of(model)
    plain = {name: values.clone() for name, values in drawn_weights(empty, shape, 0.05, recipe.run.seed)}
    drawn = drawn_weights(empty, shape, 0.05, recipe.run.seed)
    return plain, dict(with_starting_weights(drawn, shape, recipe, SmallStatistics()))


def changed_names(model: ModelSection) -> set[str]:
    drawn, changed = drawn_and_changed(model)
    assert list(drawn) == list(changed)
    return {name for name, values in drawn.items() if not torch.equal(values, changed[name])}


@pytest.mark.parametrize("family", [*FAMILIES, "electra", "xlnet"])
def test_nothing_changes_unless_it_is_asked_for(family: str) -> None:
    assert changed_names(section(family)) == set()


@pytest.mark.parametrize("family", [*FAMILIES, "electra", "xlnet"])
def test_embeddings_are_replaced_where_tokens_co_occur(family: str) -> None:
    model = section(family, "initial_embeddings=cooccurrence", "initial_embedding_std=0.3")
    expected = {"encoder.embeddings.token.weight"}
    if family == "eurobert":
        expected.add("mlm_head.decoder.weight")
    assert changed_names(model) == expected

    drawn, changed = drawn_and_changed(model)
    for name in expected:
        without_vector = [*range(SPECIALS), VOCABULARY_SIZE - 1]
        assert torch.equal(changed[name][without_vector], drawn[name][without_vector])
        assert float(changed[name][SPECIALS:-1].std()) == pytest.approx(0.3, rel=1e-5)


@pytest.mark.parametrize(
    ("family", "change", "reason"),
    [
        ("eurobert", "initial_attention=identity", "the attention heads of eurobert share keys and values"),
        ("eurobert", "initial_head=identity", "eurobert has no such weights"),
        ("albert", "initial_head=identity", "the matrix in the head of albert is not square"),
        ("xlnet", "initial_attention=identity", "xlnet has no such weights"),
    ],
)
def test_what_a_family_does_not_have_is_left_out_and_named(family: str, change: str, reason: str) -> None:
    model = section(family, change)
    assert changed_names(model) == set()
    assert ignored(model) == {change.partition("=")[0]: reason}


@pytest.mark.parametrize("family", [*FAMILIES, "electra", "xlnet"])
@pytest.mark.parametrize("change", ["initial_attention=identity", "initial_head=identity"])
def test_a_key_is_named_as_ignored_exactly_if_it_changes_nothing(family: str, change: str) -> None:
    model = section(family, change)
    assert (ignored(model) == {}) == (changed_names(model) != set())


def ignored(model: ModelSection) -> dict[str, str]:
    shape = encoder_shape(model, VOCABULARY_SIZE, mask_id=4)
    with torch.device("meta"):
        empty = model_of(shape)
    return ignored_keys(model, shape, {name: values.shape for name, values in empty.named_parameters()})


@pytest.mark.parametrize("family", [family for family in [*FAMILIES, "electra"] if family != "eurobert"])
def test_one_layer_s_attention_is_changed_the_first_with_a_window(family: str) -> None:
    model = section(family, "initial_attention=identity")
    layer = 1 if family == "modernbert" else 0
    encoders = ["encoder", "discriminator.encoder"] if family == "electra" else ["encoder"]
    parts = ("qkv.weight", "out.weight")
    assert changed_names(model) == {
        f"{encoder}.layers.{layer}.attention.{part}" for encoder in encoders for part in parts
    }


@pytest.mark.parametrize("family", ["bert", "roberta", "megatron-bert", "modernbert", "esm", "gte"])
def test_the_head_passes_on_the_last_layer(family: str) -> None:
    model = section(family, "initial_head=identity")
    assert changed_names(model) == {"mlm_head.dense.weight"}

    drawn, changed = drawn_and_changed(model)
    dense = "mlm_head.dense.weight"
    assert torch.equal(changed[dense], drawn[dense] * 0.3 + torch.eye(model.hidden_size))


def test_an_identity_attention_returns_the_mean_of_what_it_attends_to() -> None:
    shape = encoder_shape(section("bert"), VOCABULARY_SIZE)
    attention = Attention(shape, None)
    with torch.no_grad():
        for name, parameter in attention.named_parameters():
            parameter.zero_()
            make_identity(name, parameter)

    x_TD = torch.randn(7, shape.hidden_size, generator=torch.Generator().manual_seed(0))
    value_TD = F.linear(x_TD, attention.qkv.weight.chunk(3)[2])
    assert torch.equal(F.linear(value_TD, attention.out.weight), x_TD)
    assert (attention.qkv.weight.chunk(3)[0] == 0).all()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["model.initial_embedding_std=0.1"], "initial_embedding_std belongs to"),
        (["model.initial_attention=identity", "model.init_from=x"], "model.init_from already sets all initial weights"),
    ],
)
def test_contradictions_are_named(changes: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        load_recipe("tests/recipes/small_bert.toml", changes)


def test_all_starts_of_a_file_that_conflict_with_init_from_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "both.toml"
    path.write_text(recipe_text("tiny").replace("[model]", '[model]\ninit_from = "x"'))
    with pytest.raises(UsageError) as told:
        load_recipe(str(path), [])
    advice = str(told.value).partition("or set ")[2].removesuffix(".")
    assert load_recipe(str(path), advice.split(", ")).model.init_from == "x"


@pytest.mark.parametrize("source", ["init_from", "tile_from"])
def test_weights_that_set_gives_come_before_the_starts_of_a_recipe(source: str, capsys) -> None:
    model = load_recipe("tiny", [f"model.{source}=x"]).model
    assert (model.initial_embeddings, model.initial_attention, model.initial_head) == ("random", "random", "random")
    assert model.initial_embedding_std is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"clozeline: model.{source} gives all first weights, so model.initial_embeddings, model.initial_attention, "
        "model.initial_head, model.initial_embedding_std of tiny are left out."
    )
    with pytest.raises(UsageError, match=f"model.{source} already sets all initial weights"):
        load_recipe("tiny", [f"model.{source}=x", "model.initial_head=identity"])

    capsys.readouterr()
    load_recipe("bert_base", [f"model.{source}=x"])
    load_recipe("tiny", ["model.init_from=none"])
    assert capsys.readouterr().err == ""
