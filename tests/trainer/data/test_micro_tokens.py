"""batch.micro_tokens is a ceiling: no micro-batch of any rank and step has more tokens."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import UsageError
from trainer.batch_limits import token_micro_batches
from trainer.config.load import load_recipe
from trainer.config.schema import Recipe
from trainer.data.build import build_stream, open_folders
from trainer.data.rank_share import RankShare, assign_rows, share_of


def recipe_of(pairs: Path, global_tokens: int, micro_tokens: int, *changes: str) -> Recipe:
    tokens = [f"batch.global_tokens={global_tokens}", f"batch.micro_tokens={micro_tokens}"]
    rows = ["batch.global_batch=none", "batch.micro_batch=none"]
    return load_recipe("tests/recipes/small_bert.toml", [f"data.pairs={pairs}", *rows, *tokens, *changes])


@pytest.mark.parametrize("shape", ["exact", "fixed"])
@pytest.mark.parametrize(
    ("global_tokens", "micro_tokens", "world_size"), [(1024, 128, 1), (1024, 256, 2), (999, 200, 3)]
)
def test_no_micro_batch_exceeds_it(
    pairs: Path, global_tokens: int, micro_tokens: int, world_size: int, shape: str
) -> None:
    recipe = recipe_of(pairs, global_tokens, micro_tokens, f"batch.shape={shape}")
    largest = 0
    for rank in range(world_size):
        folders = open_folders(recipe)
        stream = build_stream(recipe, folders, share_of(recipe, rank, world_size, folders))
        for step in range(12):
            largest = max(largest, *(batch.tokens for batch in stream.batch(step)))
        stream.close()
    assert largest <= micro_tokens


def test_a_row_longer_than_it_is_refused_with_both_numbers(pairs: Path) -> None:
    with pytest.raises(UsageError, match=r"micro_tokens 31 is not enough for rows of up to 32 tokens"):
        share_of(recipe_of(pairs, 1024, 31), 0, 1, open_folders(recipe_of(pairs, 1024, 128)))


@given(
    lengths=st.lists(st.integers(1, 64), min_size=40, max_size=200),
    micro_tokens=st.integers(128, 400),
    world_size=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_the_number_of_micro_batches_is_enough(lengths: list[int], micro_tokens: int, world_size: int) -> None:
    """For any rows that make up one batch, whatever their lengths."""
    lengths_B = np.array(lengths)
    size = max(int(lengths_B.sum()) - 64, 1)  # a batch exceeds its size by up to a row
    micro_batches = token_micro_batches(size, micro_tokens, [64], world_size)
    share = RankShare(0, world_size, micro_batches, size)
    if len(lengths) < share.micro_batches_per_step:
        return
    for rank in range(world_size):
        for rows in assign_rows(lengths_B, RankShare(rank, world_size, micro_batches, size)):
            assert lengths_B[rows].sum() <= micro_tokens
