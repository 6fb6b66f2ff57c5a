"""Published weights meet a vocabulary with more tokens, or fewer than they have rows of embeddings."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from schemas.errors import DataError, UsageError
from schemas.vocabulary import Extension, read_vocabulary
from tests.small_models import FAMILIES, SIZES, random_model, section, write_hf
from trainer.config.load import load_recipe
from trainer.config.schema import ModelSection
from trainer.data.fit import check_model_vocabulary
from trainer.models.hf_config import model_of_folder
from trainer.models.hf_load import warm_start
from trainer.models.pretraining import PretrainingModel
from trainer.models.starting_weights import build_model
from trainer.models.tiling import tile_model


@pytest.mark.parametrize("family", FAMILIES)
def test_new_tokens_begin_as_the_mean_of_their_pieces(vocab: Path, byte_vocab: Path, tmp_path: Path, family) -> None:
    """The pairs have an extended vocabulary, the folder the old one."""
    old = read_vocabulary(str(byte_vocab if family == "roberta" else vocab))
    rows = {old.size: (7, 9), old.size + 1: (8,), old.size + 2: (11, 12, 12)}
    new_tokens = tuple(f"new{i}" for i in rows)
    new = replace(old, tokens=old.tokens + new_tokens, extension=Extension(old.size, old.fingerprint, rows))

    published = random_model(section(family), old)
    fresh = build_model(section(family), new.size, 5)
    assert warm_start(fresh, str(write_hf(published, old, tmp_path)), new) == []

    before = dict(published.named_parameters())
    grown = set()
    for name, weight in fresh.named_parameters():
        assert torch.equal(weight[: len(before[name])], before[name]), name
        if len(weight) != len(before[name]):
            grown.add(name)
            means = torch.stack([before[name][list(pieces)].mean(dim=0) for pieces in rows.values()])
            assert torch.equal(weight[old.size :], means), name
    of_head = "mlm_head.bias" if published.shape.decoder_bias else "mlm_head.decoder.weight"
    assert grown == {"encoder.embeddings.token.weight", of_head}


@pytest.mark.parametrize("added", [0, 3, 8, 11])
def test_spare_rows_of_a_folder_are_kept(vocab: Path, tmp_path: Path, added: int) -> None:
    """A folder of 8 more rows than tokens; new tokens take the place of some, of all, or of more than there are."""
    old = read_vocabulary(str(vocab))
    rows = {old.size + i: (7 + i, 9) for i in range(added)}
    new = old
    if added:
        new_tokens = tuple(f"new{i}" for i in rows)
        new = replace(old, tokens=old.tokens + new_tokens, extension=Extension(old.size, old.fingerprint, rows))

    spare = old.size + 8
    published = build_model(section("bert", f"vocab_size={spare}"), old.size, 3)
    folder = write_hf(published, old, tmp_path)
    shutil.copy(vocab / "tokenizer.json", folder)
    assert model_of_folder(str(folder))["vocab_size"] == spare

    fresh = build_model(section("bert", f"vocab_size={max(spare, new.size)}"), new.size, 5)
    assert warm_start(fresh, str(folder), new) == []
    for name in ("encoder.embeddings.token.weight", "mlm_head.bias"):
        before, weight = published.get_parameter(name).detach(), fresh.get_parameter(name).detach()
        assert torch.equal(weight[: old.size], before[: old.size])
        assert torch.equal(weight[new.size :], before[new.size :])
        for row, pieces in rows.items():
            assert torch.equal(weight[row], before[list(pieces)].mean(dim=0))


@pytest.mark.parametrize("key", ["init_from", "tile_from"])
def test_the_message_of_spare_rows_names_the_key_that_keeps_them(vocab: Path, tmp_path: Path, key: str) -> None:
    vocabulary = read_vocabulary(str(vocab))
    published = build_model(section("bert", f"vocab_size={vocabulary.size + 8}"), vocabulary.size, 3)
    folder = write_hf(published, vocabulary, tmp_path)
    shutil.copy(vocab / "tokenizer.json", folder)

    def fill(described: ModelSection) -> PretrainingModel:
        model = build_model(described, vocabulary.size, 5)
        if key == "init_from":
            assert warm_start(model, str(folder), vocabulary) == []
        else:
            assert tile_model(model, described, str(folder), vocabulary) == []
        return model

    with pytest.raises(UsageError, match="168 rows of embeddings for 160 tokens") as raised:
        fill(section("bert"))
    advised = re.search(r"--set (model\.vocab_size=\d+)", str(raised.value))
    assert advised is not None

    changes = [f"model.{size}" for size in SIZES] + [advised[1], f"model.{key}={folder}"]
    recipe = load_recipe("tests/recipes/small_bert.toml", changes)
    check_model_vocabulary(recipe, vocabulary, "pairs")
    fresh = fill(recipe.model)
    assert torch.equal(fresh.encoder.embeddings.token.weight, published.encoder.embeddings.token.weight)


def test_an_extension_of_another_vocabulary_is_refused(vocab: Path, tmp_path: Path) -> None:
    vocabulary = read_vocabulary(str(vocab))
    folder = write_hf(random_model(section("bert"), vocabulary), vocabulary, tmp_path)
    size = vocabulary.size
    extension = Extension(size - 1, "x", {size - 1: (7,), size: (7,)})
    new = replace(vocabulary, tokens=(*vocabulary.tokens, "new"), extension=extension)
    fresh = build_model(section("bert"), new.size, 5)
    with pytest.raises(DataError, match=f"has a vocabulary of {size} tokens, the pairs of {size + 1}"):
        warm_start(fresh, str(folder), new)
