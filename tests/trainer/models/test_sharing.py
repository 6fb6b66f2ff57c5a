"""What ALBERT's layers may share: the paper's parameter counts, and models that are exported with copies."""

from pathlib import Path

import pytest
import torch

from schemas.errors import DataError, UsageError
from schemas.vocabulary import read_vocabulary
from tests.small_models import as_theirs, random_model, section, write_hf
from tests.trainer.models.test_attention import LENGTHS, batch_of
from trainer.config.load import load_recipe
from trainer.models.families import encoder_shape
from trainer.models.hf_load import warm_start
from trainer.models.pretraining import PretrainingModel, build_model

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


@pytest.mark.parametrize("sharing", SHARINGS)
def test_shared_weights_get_the_gradients_of_all_layers(sharing: str) -> None:
    """As a model whose layers are separate, with the gradients of equal weights added up."""
    shared = build_model(section("albert", f"sharing={sharing}", "num_hidden_groups=1"), 61, 3).eval()
    separate = build_model(section("albert", "sharing=none"), 61, 3).eval()
    own = dict(shared.named_parameters())
    with torch.no_grad():
        for name, parameter in separate.named_parameters():
            parameter.copy_(own[shared_name(name, own)])

    batch = batch_of(LENGTHS)
    shared(batch).mlm_sum.backward()
    separate(batch).mlm_sum.backward()
    expected = {name: torch.zeros_like(parameter) for name, parameter in own.items()}
    for name, parameter in separate.named_parameters():
        if parameter.grad is not None:
            expected[shared_name(name, own)] += parameter.grad
    for name, parameter in own.items():
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found, expected[name], atol=1e-5, rtol=1e-4, msg=name)


def shared_name(name: str, own: dict[str, torch.nn.Parameter]) -> str:
    """The name that a separate layer's parameter has in a model that may share it with the first layer."""
    if name in own:
        return name
    parts = name.split(".")
    return ".".join([*parts[:2], "0", *parts[3:]])


def test_only_albert_shares() -> None:
    with pytest.raises(UsageError, match=r'model\.sharing belongs to "albert"'):
        section("bert", "sharing=attention")
