"""model.tile_from as plain loops over single values, with which the trainer's tiles are compared."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from trainer.models.pretraining import PretrainingModel


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
    """Parts stacked from top to bottom, whose heads differ in width."""
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
