"""batch.micro_tokens = "auto": what is chosen, and that it is tried without a trace."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UsageError
from tests.trainer.one_rank import ThreadedRanks, group_of_one
from trainer import micro_batches
from trainer.config.load import load_recipe
from trainer.config.phases import phases_of
from trainer.config.schema import BatchSection, Recipe
from trainer.data.folder import open_folders
from trainer.data.share import needed_tokens, row_micro_batches, share_of, token_micro_batches
from trainer.data.stream import build_stream
from trainer.describe import MOST_TOKENS, count_parameters, held_bytes, largest_micro_batch, meta_model
from trainer.distributed import collectives
from trainer.distributed.collectives import RankFailedError
from trainer.micro_batches import (
    CPU_TOKENS,
    RECORD,
    Choice,
    Rows,
    after_choice,
    fits,
    is_out_of_memory,
    recorded,
    trial_batch,
    with_micro_batches,
)
from trainer.models.batch import PackedBatch
from trainer.models.families import encoder_shape
from trainer.models.pretraining import PretrainingModel

TINY = "tests/recipes/small_bert.toml"
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
    tokens = needed_tokens(section, limit, [longest], ranks)
    micro_batches = row_micro_batches(rows, tokens, longest, ranks)
    assert tokens <= limit and micro_batches == row_micro_batches(rows, limit, longest, ranks)
    assert ranks * micro_batches * (tokens // longest) >= rows
    assert needed_tokens(section, tokens, [longest], ranks) == tokens


@given(
    size=st.integers(2_000, 200_000),
    longest=st.lists(st.integers(8, 512), min_size=1, max_size=3),
    ranks=st.integers(1, 9),
)
def test_a_part_of_the_batch_that_fits_is_one_micro_batch(size: int, longest: list[int], ranks: int) -> None:
    tokens = needed_tokens(batch(global_tokens=size, micro_tokens="auto"), 10**9, longest, ranks)
    assert token_micro_batches(size, tokens, longest, ranks) == 1
    assert tokens <= size // ranks + sum(longest) + 4 * max(longest) + 64


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
    parameters = count_parameters(meta_model(shape))
    found = [largest_micro_batch(shape, parameters, recipe, 1, gigabytes * 1e9) for gigabytes in (4, 16, 24, 40, 1000)]
    assert found == sorted(found) and found[0] == 0 and found[-1] == MOST_TOKENS
    assert 5_000 < found[2] < 20_000

    def with_keys(*changes: str) -> int:
        return largest_micro_batch(shape, parameters, load_recipe("bert_large", list(changes)), 8, 16e9)

    assert with_keys("engine.recompute=true") > with_keys() > found[1], "sharding leaves room, recomputing more"
    assert with_keys("engine.precision=fp32") < with_keys()


CUDA = torch.device("cuda")


@pytest.mark.parametrize("stage", [1, 3], ids=["tried", "by the estimate alone"])
def test_a_size_is_halved_until_it_fits(monkeypatch: pytest.MonkeyPatch, stage: int) -> None:
    tried: list[int] = []

    def fits(shape: object, recipe: object, batch: PackedBatch, *_: object) -> bool:
        tried.append(batch.tokens)
        return batch.tokens <= most

    recipe = recipe_of("batch.global_batch=100", f"engine.zero_stage={stage}")
    shape = encoder_shape(recipe.model, 500)
    monkeypatch.setattr(micro_batches, "dist", ThreadedRanks(1))
    monkeypatch.setattr(micro_batches, "free_memory", lambda device: 10**12)
    monkeypatch.setattr(micro_batches, "fits", fits)
    monkeypatch.setattr(micro_batches, "largest_micro_batch", lambda *_: estimate)
    rows = Rows((128,), 40.0)

    estimate, most = 65_536, 3000
    assert micro_batches.largest_that_fits(recipe, shape, rows, CUDA) == (12_800 if stage == 3 else 1536)
    assert tried == ([] if stage == 3 else [12_800, 6400, 3200, 1536])

    estimate, most = 100, 128
    assert micro_batches.largest_that_fits(recipe, shape, rows, CUDA) == (0 if stage == 3 else 128)
    most = 0
    assert micro_batches.largest_that_fits(recipe, shape, rows, CUDA) == 0


# The trial


def test_a_trial_leaves_no_trace() -> None:
    recipe = recipe_of("model.hidden_dropout_prob=0.1", "engine.precision=bf16")
    shape = encoder_shape(recipe.model, 500)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    gc.collect()
    alive = sum(isinstance(thing, PretrainingModel) for thing in gc.get_objects())
    held = held_bytes(count_parameters(meta_model(shape)), recipe, 1)
    assert fits(shape, recipe, trial_batch(shape, recipe, 512, 40.0), held, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert sum(isinstance(thing, PretrainingModel) for thing in gc.get_objects()) == alive


def test_a_trial_is_as_large_as_a_micro_batch(monkeypatch) -> None:
    """And running out of memory, in the middle of its backward pass too, is an answer and no error."""
    recipe = recipe_of()
    shape = encoder_shape(recipe.model, 500)
    batch = trial_batch(shape, recipe, 1000, 40.0)
    assert len(batch.ids_T) == 1024 and batch.longest == 128
    assert len(batch.masked_positions_K) >= 0.3 * 1024, "as many masks as tiny draws"

    def out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "backward", out_of_memory)
    assert not fits(shape, recipe, batch, 0, CPU)


@pytest.mark.parametrize(
    ("words", "is_memory"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
        ("CUDA error: out of memory", True),
        ("NCCL error: unhandled cuda error. Last error: Cuda failure 2 'out of memory'", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED", False),
    ],
)
def test_a_trial_tells_memory_from_other_faults(monkeypatch, words: str, is_memory: bool) -> None:
    """Libraries of a GPU allocate by themselves, and torch knows only their words."""

    def fail(*_: object) -> None:
        raise RuntimeError(words)

    monkeypatch.setattr(torch.Tensor, "backward", fail)
    recipe = recipe_of()
    shape = encoder_shape(recipe.model, 500)
    batch = trial_batch(shape, recipe, 512, 40.0)
    if is_memory:
        assert not fits(shape, recipe, batch, 0, CPU)
    else:
        with pytest.raises(RuntimeError, match="CUDA error"):
            fits(shape, recipe, batch, 0, CPU)


@pytest.mark.parametrize("request_bytes", [2**50, 2**62])
def test_an_allocation_that_a_cpu_refuses_is_out_of_memory(request_bytes: int) -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(request_bytes, dtype=torch.uint8)
    assert is_out_of_memory(refused.value)


def test_ranks_agree_on_the_smallest_and_share_the_error_of_one(monkeypatch) -> None:
    """None may wait for a rank whose trial has failed."""
    ranks = ThreadedRanks(3)
    monkeypatch.setattr(collectives, "dist", ranks)
    monkeypatch.setattr(micro_batches, "dist", ranks)
    recipe = recipe_of()
    shape = encoder_shape(recipe.model, 500)

    def choose(rank: int) -> int:
        return micro_batches.choose(recipe, shape, Rows((128,), 40.0), CPU)

    monkeypatch.setattr(micro_batches, "largest_that_fits", lambda *_: [4096, 700, 4096][ranks.get_rank()])
    assert ranks.run(choose) == [700, 700, 700]

    def breaks(*_: object) -> int:
        if ranks.get_rank() == 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return 4096

    monkeypatch.setattr(micro_batches, "largest_that_fits", breaks)
    errors = ranks.run(choose)
    assert {type(error) for error in errors} == {RankFailedError}
    assert all("Rank 1 failed" in str(error) and "illegal memory access" in str(error) for error in errors)


# What needs no choice


def test_a_number_in_the_recipe_is_left_alone(pairs: Path) -> None:
    phase = phases_of(load_recipe(TINY, [f"data.pairs={pairs}"]))[0]
    assert with_micro_batches(phase, [], CPU) == (phase, None)


# The record


@pytest.fixture
def alone() -> Iterator[None]:
    with group_of_one():
        yield


def choose_in(run: Path, pairs: Path, *changes: str) -> Choice:
    """Return the choice that a start takes."""
    fixed = ["model.vocab_size=none", "batch.shape=fixed", "engine.compile=false"]
    phase = phases_of(recipe_of(f"data.pairs={pairs}", f"run.output={run}", *fixed, *changes))[0]
    changed, choice = with_micro_batches(phase, open_folders(phase.recipe), CPU)
    assert choice is not None and changed.recipe.batch.micro_tokens == choice.tokens
    return choice


def test_a_choice_is_taken_again_under_the_same_circumstances(alone, tmp_path: Path, pairs: Path) -> None:
    first = choose_in(tmp_path, pairs)
    assert first.tokens == 32 * 32 < CPU_TOKENS, "all rows of a step: fewer than the limit of a CPU"

    # What is recorded counts, not what would be chosen now.
    path = tmp_path / RECORD
    assert recorded(str(tmp_path)) == {first.key: 1024}
    path.write_text(json.dumps({first.key: 320}))
    assert choose_in(tmp_path, pairs).tokens == 320
    assert choose_in(tmp_path, pairs, "deepspeed.wall_clock_breakdown=true").tokens == 320, "it needs no memory"
    assert path.read_text() == json.dumps({first.key: 320}), "nothing was chosen, nothing is recorded"

    for damaged in ("{damaged", "[1]", '{"a": "b"}', "7"):
        path.write_text(damaged)
        assert choose_in(tmp_path, pairs) == first


@pytest.mark.parametrize(
    "change",
    [
        "batch.shape=exact",
        "batch.global_batch=64",
        "masking.prob=0.5",
        "masking.final_prob=0.5",
        "model.hidden_dropout_prob=0.4",
        "model.attention_probs_dropout_prob=0.4",
        "engine.compile=true",
        "engine.recompute=true",
        "engine.precision=bf16",
        "deepspeed.zero_optimization.reduce_bucket_size=1000",
    ],
)
def test_a_choice_is_made_again_if_what_it_depends_on_changes(alone, tmp_path: Path, pairs: Path, change: str) -> None:
    first, other = choose_in(tmp_path, pairs), choose_in(tmp_path, pairs, change)
    assert recorded(str(tmp_path)) == {first.key: first.tokens, other.key: other.tokens}
    assert len(recorded(str(tmp_path))) == 2, "the first one still holds for what it was made for"


def test_the_smallest_choice_of_all_ranks_is_taken(monkeypatch, alone, tmp_path: Path, pairs: Path) -> None:
    """A rank that ran out of memory records half in the folder of its machine, which others may not see."""
    key = choose_in(tmp_path, pairs).key
    monkeypatch.setattr(micro_batches, "run_on_all_ranks", lambda act: [act(), 512, None])
    assert choose_in(tmp_path, pairs).tokens == 512
    assert recorded(str(tmp_path)) == {key: 1024}


def test_a_choice_that_ran_out_of_memory_is_halved_until_nothing_is_left(alone, tmp_path: Path, pairs: Path) -> None:
    sizes = []
    choice = choose_in(tmp_path, pairs)
    while choice.half > 0:
        sizes.append(choice.tokens)
        # Two ranks of a machine run out of memory together.
        advice = {after_choice(str(tmp_path), choice) for _ in range(2)}
        assert f"resumes from the last checkpoint and takes {choice.half}." in advice.pop() and not advice
        before, choice = choice, choose_in(tmp_path, pairs)
        assert choice.tokens == before.half == choose_in(tmp_path, pairs).tokens, "and then it stays"
    assert [*sizes, choice.tokens] == [1024, 512, 256, 128, 64, 32]
    assert "Rows are too long for less. Set engine.recompute" in after_choice(str(tmp_path), choice)


def test_half_that_cannot_be_recorded_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file in the folder's place")
    advice = after_choice(str(tmp_path / "run"), Choice(512, 256, "key"))
    assert "This could not be recorded: " in advice and advice.endswith(" Set batch.micro_tokens=256.")


# Runs


def test_a_run_out_of_memory_says_so_and_the_next_start_takes_half(training, tmp_path: Path) -> None:
    """The memory that is refused is this machine's own, asked for in the third step's forward pass."""
    auto = {"batch__micro_batch": "none", "batch__micro_tokens": "auto", "checkpoint__every": 2}
    done = training.warm(1, tmp_path / "run", "exhaust:0:3:3", **auto)
    assert done.returncode == 1
    assert "batch.micro_tokens auto: 512 tokens at once on each rank." in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if "out of memory" in line]
    assert line == (
        f"clozeline: {tmp_path}/run: out of memory on cpu, with 512 tokens at once, which batch.micro_tokens auto "
        f"chose. {tmp_path}/run/micro_batches.json records it: the same command resumes from the last checkpoint and "
        "takes 256."
    )

    done = training.trained(1, tmp_path / "run", **auto)
    assert "batch.micro_tokens auto: 256 tokens at once, as recorded in micro_batches.json." in done.stdout
    assert list(training.losses(tmp_path / "run")) == list(range(1, 13))
    assert list(recorded(str(tmp_path / "run")).values()) == [256]


def test_a_micro_batch_of_the_recipe_s_own_that_is_too_large_is_named(training, tmp_path: Path) -> None:
    done = training.warm(1, tmp_path / "run", "exhaust:0:1:1")
    assert done.returncode == 1
    assert "out of memory on cpu, with batch.micro_batch 4. Lower it, or set batch.micro_batch=none" in done.stderr
    assert "Traceback" not in done.stderr
