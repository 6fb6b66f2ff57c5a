"""Data that does not fit the recipe is refused before anything heavy starts, with the numbers and what to do."""

from pathlib import Path

import pytest

from schemas.errors import ClozelineError
from trainer.config.load import load_recipe
from trainer.data.build import build_stream, open_folders
from trainer.data.rank_share import RankShare

TOKENS = ["batch.global_batch=none", "batch.micro_batch=none", "batch.global_tokens=600", "batch.micro_tokens=100"]


def build(pairs: object, *changes: str) -> None:
    """As far as a run goes before it builds its model."""
    recipe = load_recipe("tests/recipes/small_bert.toml", [f"data.pairs={pairs}", *changes])
    folders = open_folders(recipe)
    build_stream(recipe, folders, RankShare(0, 1, 1, recipe.batch.size)).close()


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (["masking.stored=true", "masking.prob=0.15"], 3, "holds no masks for masking.stored"),
        (["batch.global_batch=8000000"], 3, "fewer than one global batch of 8,000,000"),
        (["model.max_position_embeddings=16"], 3, "rows of up to 32 tokens, but model.max_position_embeddings is 16"),
        (TOKENS, 2, "Give at least 128"),
        (["data.pairs=[]"], 2, "names no folder"),
    ],
)
def test_what_does_not_fit_is_refused(pairs: Path, changes: list[str], code: int, message: str) -> None:
    build(pairs)
    with pytest.raises(ClozelineError, match=message) as caught:
        build(pairs, *changes)
    assert caught.value.exit_code == code


def test_folders_of_different_vocabularies_are_refused(command, text, byte_vocab, pairs, tmp_path) -> None:
    made = ("--text", text, "--vocab", byte_vocab, "--output", tmp_path / "b", "--objective", "nsp", "--max_length", 32)
    assert command("pairs", *made).returncode == 0
    with pytest.raises(ClozelineError, match="Rebuild one with the other's") as caught:
        build(f'["{pairs}", "{tmp_path / "b"}"]')
    assert caught.value.exit_code == 3
