"""batch.micro_tokens = "auto": what is chosen, that it is tried without a trace, and that a resume keeps it."""

import gc
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UsageError
from trainer import micro_batches, trial_pass
from trainer.batch_limits import needed_tokens, row_micro_batches, smallest_micro_batch
from trainer.config.load import load_recipe
from trainer.config.phases import phases_of
from trainer.config.schema import BatchSection, Recipe
from trainer.data.build import build_stream, open_folders
from trainer.data.loader import assign_rows
from trainer.engine import share_of
from trainer.memory import MOST_TOKENS, held_bytes, largest_micro_batch
from trainer.micro_batches import CPU_TOKENS, Rows, circumstances, halve_until_it_fits, record, recorded
from trainer.models.families import encoder_shape
from trainer.models.pretraining import PretrainingModel
from trainer.trial_pass import Trial, count_parameters

TINY = "trainer/recipes/tiny.toml"
AUTO = ["batch.micro_batch=none", "batch.micro_tokens=auto"]
CPU = torch.device("cpu")


def recipe_of(*changes: str) -> Recipe:
    return load_recipe(TINY, ["model.vocab_size=500", "data.pairs=/none", *AUTO, *changes])


# In rows or in tokens


def batch(**keys: object) -> BatchSection:
    return BatchSection.model_validate(keys)


@given(
    rows=st.integers(1, 5000), limit=st.integers(32, 70_000), longest=st.sampled_from([8, 32]), ranks=st.integers(1, 9)
)
def test_rows_are_cut_into_equal_parts_within_the_limit(rows: int, limit: int, longest: int, ranks: int) -> None:
    """Whatever the number of ranks: they need not divide the rows."""
    section = batch(global_batch=rows, micro_tokens="auto")
    tokens = needed_tokens(section, limit, longest, ranks)
    micro_batches = row_micro_batches(rows, tokens, longest, ranks)
    assert tokens <= limit and micro_batches == row_micro_batches(rows, limit, longest, ranks)
    assert ranks * micro_batches * (tokens // longest) >= rows
    assert needed_tokens(section, tokens, longest, ranks) == tokens


def test_examples_of_both_counts() -> None:
    assert needed_tokens(batch(global_batch=256, micro_tokens="auto"), 20_000, 128, 1) == 16_384
    assert needed_tokens(batch(global_batch=256, micro_tokens="auto"), 65_536, 128, 8) == 4096
    in_tokens = batch(global_tokens=1_000_000, micro_tokens="auto")
    assert needed_tokens(in_tokens, 50_001, 128, 1) == 49_984
    assert needed_tokens(in_tokens, 65_536, 128, 64) == 15_872, "its part of a million, and room for two rows"
    assert [smallest_micro_batch(section, 128) for section in (batch(global_batch=8), in_tokens)] == [128, 512]


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_row_is_computed_and_no_micro_batch_is_too_large(pairs: Path, ranks: int) -> None:
    """40 rows on three ranks: no number of rows a micro-batch divides them."""
    recipe = recipe_of(f"data.pairs={pairs}", "model.vocab_size=none", "batch.global_batch=40", "batch.shape=fixed")
    recipe = recipe.model_copy(update={"batch": recipe.batch.model_copy(update={"micro_tokens": 200})})
    seen = 0
    for rank in range(ranks):
        folders = open_folders(recipe)
        share = share_of(recipe, rank, ranks, folders)
        assert share.micro_batches == -(-40 // (6 * ranks))
        stream = build_stream(recipe, folders, share)
        for micro_batch in stream.batch(0):
            seen += micro_batch.paired
            assert len(micro_batch.ids_T) <= 256  # 200, and the multiple of 64
        stream.close()
    assert seen == 40


def test_a_limit_below_a_row_is_refused(pairs: Path) -> None:
    recipe = recipe_of(f"data.pairs={pairs}", "model.vocab_size=none", "batch.micro_tokens=31")
    with pytest.raises(UsageError, match=r"micro_tokens 31 is not enough for rows of up to 32 tokens\. Give at least"):
        share_of(recipe, 0, 1, open_folders(recipe))


def test_assignment_of_uneven_numbers_is_even() -> None:
    import numpy as np

    share = SimpleNamespace(rank=0, world_size=1, micro_batches=7, micro_batches_per_step=7)
    sizes = [len(rows) for rows in assign_rows(np.full(40, 32), share)]  # type: ignore[arg-type]
    assert sorted(set(sizes)) == [5, 6] and sum(sizes) == 40


@pytest.mark.parametrize(
    ("settings", "is_valid"),
    [
        (["batch.micro_tokens=auto", "batch.micro_batch=none"], True),
        (["batch.micro_tokens=auto"], True),  # micro_batch comes first
        (["batch.micro_tokens=4096"], False),
        (["batch.micro_tokens=4096", "batch.micro_batch=none"], True),
        (["batch.global_batch=none", "batch.global_tokens=4096", "batch.micro_tokens=auto"], False),
        (
            ["batch.global_batch=none", "batch.micro_batch=none", "batch.global_tokens=99", "batch.micro_tokens=auto"],
            True,
        ),
        (["batch.micro_batch=none", "batch.micro_tokens=most"], False),
        (["batch.micro_batch=none", "batch.micro_tokens=0"], False),
    ],
)
def test_what_a_recipe_may_say(settings: list[str], is_valid: bool) -> None:
    if is_valid:
        load_recipe(TINY, settings)
    else:
        with pytest.raises(UsageError, match=r"\[batch\] needs|batch\.micro_tokens"):
            load_recipe(TINY, settings)


# How many fit


def test_more_memory_holds_more_tokens_up_to_a_limit() -> None:
    recipe = load_recipe("bert_large", [])
    shape = encoder_shape(recipe.model, 30_522)
    parameters = count_parameters(shape)
    found = [largest_micro_batch(shape, parameters, recipe, 1, gigabytes * 1e9) for gigabytes in (4, 16, 24, 40, 1000)]
    assert found == sorted(found) and found[0] == 0 and found[-1] == MOST_TOKENS
    assert 5_000 < found[2] < 20_000

    def with_keys(*changes: str) -> int:
        return largest_micro_batch(shape, parameters, load_recipe("bert_large", list(changes)), 8, 16e9)

    assert with_keys("engine.recompute=true") > with_keys() > found[1], "sharding leaves room, recomputing more"
    assert with_keys("engine.precision=fp32") < with_keys()


def test_a_limit_is_halved_until_it_fits() -> None:
    tried: list[int] = []

    def fits(tokens: int) -> bool:
        tried.append(tokens)
        return tokens <= 3000

    def need(tokens: int) -> int:
        return needed_tokens(batch(global_batch=100, micro_tokens="auto"), tokens, 128, 1)

    assert halve_until_it_fits(need(65_536), 128, need, fits) == tried[-1] <= 3000
    assert tried == [12_800, 6400, 3200, 1536]
    assert halve_until_it_fits(need(65_536), 128, need, lambda tokens: False) == 0


# The trial


def test_a_trial_leaves_no_trace() -> None:
    recipe = recipe_of("model.hidden_dropout_prob=0.1", "engine.precision=bf16")
    shape = encoder_shape(recipe.model, 500)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    gc.collect()
    alive = sum(isinstance(thing, PretrainingModel) for thing in gc.get_objects())
    assert Trial(shape, recipe, 40.0, held_bytes(count_parameters(shape), recipe, 1), CPU).fits(512)
    assert torch.equal(torch.get_rng_state(), before)
    assert sum(isinstance(thing, PretrainingModel) for thing in gc.get_objects()) == alive


def test_a_trial_is_as_large_as_a_micro_batch(monkeypatch) -> None:
    """And running out of memory, in the middle of its backward pass too, is an answer and no error."""
    recipe = recipe_of()
    shape = encoder_shape(recipe.model, 500)
    trial_batch = trial_pass.trial_batch(shape, recipe, 1000, 40.0)
    assert len(trial_batch.ids_T) == 1024 and trial_batch.longest == 128
    assert len(trial_batch.masked_positions_K) >= 0.3 * 1024, "as many masks as tiny draws"

    def out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "backward", out_of_memory)
    assert not Trial(shape, recipe, 40.0, 0, CPU).fits(512)


# The record


@pytest.fixture
def alone(monkeypatch) -> None:
    """One rank, whose collective calls need no process group."""
    monkeypatch.setattr(micro_batches, "run_on_rank_0", lambda act: act())
    monkeypatch.setattr(micro_batches.dist, "get_world_size", lambda: 1)


def test_a_choice_is_taken_again_under_the_same_circumstances(alone, tmp_path: Path, pairs: Path) -> None:
    changes = [f"data.pairs={pairs}", "model.vocab_size=none", f"run.output={tmp_path}"]
    phase = phases_of(recipe_of(*changes))[0]
    folders = open_folders(phase.recipe)
    chosen = micro_batches.with_micro_batches(phase, folders, CPU)
    assert chosen.recipe.batch.micro_tokens == 32 * 32, "all rows of a step: fewer than the limit of a CPU"
    assert CPU_TOKENS > 32 * 32

    made_for = circumstances(phase, Rows.of(folders), CPU)
    assert recorded(str(tmp_path), made_for) == 32 * 32
    assert recorded(str(tmp_path), made_for | {"ranks": 2}) is None

    # What is recorded counts, not what would be chosen now.
    path = tmp_path / micro_batches.RECORD
    choices = json.loads(path.read_text())
    choices[0]["micro_tokens"] = 320
    path.write_text(json.dumps(choices))
    assert micro_batches.with_micro_batches(phase, folders, CPU).recipe.batch.micro_tokens == 320

    path.write_text("{damaged")
    assert recorded(str(tmp_path), made_for) is None
    record(str(tmp_path), made_for, 64)
    assert recorded(str(tmp_path), made_for) == 64


def test_a_number_in_the_recipe_is_left_alone(pairs: Path) -> None:
    phase = phases_of(load_recipe(TINY, [f"data.pairs={pairs}"]))[0]
    assert micro_batches.with_micro_batches(phase, [], CPU) is phase
