"""A model is filled with tiles of a smaller one's weights, or the run says before its first step why it cannot be."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from schemas.vocabulary import read_vocabulary
from tests.small_models import FAMILIES, SMALL_VOCABULARY, random_model, section, write_hf
from tests.trainer.conftest import saved
from tests.trainer.models.tiling_models import GROWN, fresh, large_section, small_section, weights, write_parts
from trainer.models.pretraining import PretrainingModel, build_model
from trainer.models.tiling import source_layer, tile_model, tile_places

# The rule, as a plain loop


def walk(size: int, small: int) -> list[int]:
    """From the smaller dimension in the middle, one place after the other to the left, and then to the right."""
    places = list(range(small))
    for _ in range((size - small) // 2):
        places.insert(0, (places[0] - 1) % small)
    while len(places) < size:
        places.append((places[-1] + 1) % small)
    return places


def walk_heads(size: int, small: int, width: int) -> list[int]:
    return [head * width + value for head in walk(size // width, small // width) for value in range(width)]


def walk_parts(sizes: list[tuple[int, int]], width: list[int]) -> list[int]:
    """Parts that lie one below the other, each of heads of its own width."""
    places = []
    start = 0
    for (size, small), of_head in zip(sizes, width, strict=True):
        places += [start + place for place in walk_heads(size, small, of_head)]
        start += small
    return places


def expected_tile(name: str, large: PretrainingModel, small: PretrainingModel, sources: dict[str, Tensor]) -> Tensor:
    """The tile of one weight, value by value."""
    ours = large.shape
    theirs = small.shape
    if ours.generator is not None and theirs.generator is not None and not name.startswith("discriminator."):
        ours = ours.generator
        theirs = theirs.generator

    def of_layer(match: re.Match) -> str:
        depth, small_depth = ours.num_hidden_layers, theirs.num_hidden_layers
        if ours.sharing == "all":
            depth, small_depth = ours.num_hidden_groups, theirs.num_hidden_groups
        return f"layers.{min(small_depth - 1, round(int(match[1]) * small_depth / depth))}."

    source = sources[re.sub(r"layers\.(\d+)\.", of_layer, name)]
    target = dict(large.named_parameters(remove_duplicate=False))[name]
    places = [walk(*sizes) for sizes in zip(target.shape, source.shape, strict=True)]

    head = theirs.hidden_size // theirs.num_attention_heads
    group = head * theirs.num_attention_heads // theirs.num_key_value_heads
    keys = (ours.num_key_value_heads * head, theirs.num_key_value_heads * head)
    if ".attention.qkv." in name:
        places[0] = walk_parts([(ours.hidden_size, theirs.hidden_size), keys, keys], [group, head, head])
    if ".attention.out." in name and len(places) == 2:
        places[1] = walk_heads(ours.hidden_size, theirs.hidden_size, group)
    if ".up." in name and ours.gated:
        half = (ours.intermediate_size, theirs.intermediate_size)
        places[0] = walk_parts([half, half], [1, 1])

    values = source.tolist()  # its single values are read a hundred times as fast as those of a tensor
    if len(places) == 1:
        factors = expected_shares(places[0]) if ours.tied and name.startswith("mlm_head.norm.") else [1.0] * len(target)
        return torch.tensor([values[row] * factor for row, factor in zip(places[0], factors, strict=True)])

    # From left to right in even rows, from right to left in odd ones.
    shares = [expected_shares(places[1]), expected_shares(places[1][::-1])[::-1]]
    if isinstance(large.get_submodule(name.rpartition(".")[0]), torch.nn.Embedding):
        shares = [[1.0] * len(places[1])] * 2
    rows = []
    for number, row in enumerate(places[0]):
        columns = zip(places[1], shares[number % 2], strict=True)
        rows.append([values[row][column] * share for column, share in columns])
    return torch.tensor(rows)


def expected_shares(places: list[int]) -> list[float]:
    """Of n duplicates, the first has 0.8 / n, the last 1.2 / n, and the others lie in equal steps between them."""
    seen: dict[int, int] = {}
    shares = []
    for place in places:
        duplicates = places.count(place)
        order = seen.get(place, 0)
        seen[place] = order + 1
        shares.append((0.8 + 0.4 * order / (duplicates - 1)) / duplicates if duplicates > 1 else 1.0)
    return shares


@pytest.mark.parametrize("family", [*FAMILIES, "electra"])
def test_every_weight_is_the_tile_that_a_plain_loop_makes(family: str, tmp_path: Path) -> None:
    small = random_model(small_section(family), SMALL_VOCABULARY)
    large = fresh(large_section(family))
    before = weights(large)
    assert tile_model(large, str(write_parts(small, tmp_path)), SMALL_VOCABULARY) == []

    sources = weights(small)
    without_source = set()
    for name, weight in weights(large).items():
        try:
            expected = expected_tile(name, large, small, sources)
        except KeyError:
            expected = before[name]
            without_source.add(name)
        torch.testing.assert_close(weight, expected, rtol=1e-6, atol=0, msg=name)

    # ModernBERT's first layer has no norm before attention, and layer 1 of 10 is made from layer 0 of 4.
    assert without_source == ({"encoder.layers.1.attention_norm.weight"} if family == "modernbert" else set())


@pytest.mark.parametrize("sharing", ["attention", "feed_forward", "none"])
def test_albert_s_other_sharings(sharing: str, tmp_path: Path) -> None:
    small = random_model(section("albert", f"sharing={sharing}"), SMALL_VOCABULARY)
    large = fresh(section("albert", *GROWN, f"sharing={sharing}"))
    assert tile_model(large, str(write_parts(small, tmp_path)), SMALL_VOCABULARY) == []
    for name, parameter in large.named_parameters():
        expected = expected_tile(name, large, small, weights(small))
        torch.testing.assert_close(parameter, expected, rtol=1e-6, atol=0, msg=name)


@pytest.mark.parametrize("family", [*FAMILIES, "electra"])
def test_equal_sizes_give_the_folder_s_model(family: str, tmp_path: Path) -> None:
    small = random_model(small_section(family), SMALL_VOCABULARY)
    same = fresh(small_section(family))
    assert tile_model(same, str(write_parts(small, tmp_path)), SMALL_VOCABULARY) == []
    for name, weight in weights(same).items():
        assert torch.equal(weight, weights(small)[name]), name


def test_layers_are_spread_over_the_depth() -> None:
    modernbert_large = [source_layer(layer, 28, 22) for layer in range(28)]
    assert modernbert_large[:9] == [0, 1, 2, 2, 3, 4, 5, 6, 6] and modernbert_large[-2:] == [20, 21]
    for small in range(1, 13):
        for layers in range(small, 40):
            sources = [source_layer(layer, layers, small) for layer in range(layers)]
            assert sources == sorted(sources) and set(sources) <= set(range(small))
            assert sources[0] == 0 and (layers > small or sources == list(range(small)))


def test_places_repeat_from_the_middle() -> None:
    assert tile_places(7, 3).tolist() == walk(7, 3) == [1, 2, 0, 1, 2, 0, 1]
    assert tile_places(16, 12).tolist() == [10, 11, *range(12), 0, 1]


def test_what_the_folder_lacks_stays_fresh(tmp_path: Path) -> None:
    """A bare encoder has no heads, and an ELECTRA without a generator still has the embeddings."""
    bert = write_parts(random_model(section("bert"), SMALL_VOCABULARY), tmp_path / "bert")
    file = bert / "model.safetensors"
    bare = {name: tensor for name, tensor in load_file(file).items() if not name.startswith("cls.")}
    save_file(bare, file, {"format": "pt"})
    large = fresh(large_section("bert"))
    before = weights(large)
    assert tile_model(large, str(bert), SMALL_VOCABULARY) == ["mlm_head", "pair_head"]
    for name, weight in weights(large).items():
        assert torch.equal(weight, before[name]) == name.startswith(("mlm_head.", "pair_head.")), name

    electra = write_parts(random_model(small_section("electra"), SMALL_VOCABULARY), tmp_path / "electra")
    shutil.rmtree(electra / "generator")
    large = fresh(large_section("electra"))
    before = weights(large)
    assert tile_model(large, str(electra), SMALL_VOCABULARY) == ["generator"]
    for name, weight in weights(large).items():
        is_filled = name.startswith("discriminator.") or ".embeddings." in name
        assert torch.equal(weight, before[name]) != is_filled, name


# Runs


def test_runs_that_begin_with_tiles(training, vocab: Path, tmp_path: Path) -> None:
    """On two ranks that share every weight (ZeRO 3); a resume on one does not look at the folder."""
    vocabulary = read_vocabulary(str(vocab))
    small = random_model(section("bert"), vocabulary)
    folder = write_hf(small, vocabulary, tmp_path / "hf")
    expected = build_model(large_section("bert"), vocabulary.size, 5)
    tile_model(expected, str(folder), vocabulary)

    common: dict[str, object] = {"optimizer__lr": 1e-12}
    for setting in GROWN:
        name, _, value = setting.partition("=")
        common[f"model__{name}"] = value

    out = tmp_path / "run"
    begun = training.warm(2, out, **common, model__tile_from=folder, run__stop_at=1, engine__zero_stage=3)
    assert begun.returncode == 0, begun.stderr
    assert f"Beginning with tiles of the weights of {folder}." in begun.stdout
    weights = saved(out / "checkpoints/step-00000001")
    for name, weight in expected.named_parameters():
        torch.testing.assert_close(weights[name], weight.detach(), atol=1e-9, rtol=0)

    resumed = training.warm(1, out, **common, model__tile_from=tmp_path / "gone", run__stop_at=2)
    assert resumed.returncode == 0 and "Resuming from" in resumed.stdout, resumed.stderr

    too_small = common | {"model__tile_from": folder, "model__num_hidden_layers": 3}
    refused = training.warm(1, tmp_path / "refused", **too_small)
    assert refused.returncode == 2 and "num_hidden_layers is 4, the recipe makes it 3" in refused.stderr
