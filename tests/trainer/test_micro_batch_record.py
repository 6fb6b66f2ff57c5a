"""micro_batches.json: what batch.micro_tokens = "auto" chose is taken again, and halved where it ran out of memory."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from schemas.errors import UsageError
from tests.trainer.one_rank import group_of_one
from trainer.config.load import load_recipe
from trainer.config.phases import phases_of
from trainer.config.schema import Recipe
from trainer.data.folder import open_folders
from trainer.micro_batch_record import RECORD, Choice, record, recorded
from trainer.micro_batches import CPU_TOKENS, Rows, circumstances, known_choice, with_micro_batches

TINY = "tests/recipes/small_bert.toml"
AUTO = ["batch.micro_batch=none", "batch.micro_tokens=auto"]
CPU = torch.device("cpu")


def recipe_of(*changes: str) -> Recipe:
    return load_recipe(TINY, ["model.vocab_size=500", "data.pairs=/none", *AUTO, *changes])


@pytest.fixture
def alone() -> Iterator[None]:
    with group_of_one():
        yield


def choose_in(run: Path, pairs: Path, *changes: str) -> tuple[Choice | None, Choice]:
    """Return the recorded choice that a start would take, and the one that it has taken."""
    fixed = ["model.vocab_size=none", "batch.shape=fixed", "engine.compile=false"]
    phase = phases_of(recipe_of(f"data.pairs={pairs}", f"run.output={run}", *fixed, *changes))[0]
    folders = open_folders(phase.recipe)
    made_for = circumstances(phase, Rows.of(folders), CPU)
    known = known_choice(str(run), made_for)
    changed, choice = with_micro_batches(phase, folders, CPU)
    assert choice is not None and changed.recipe.batch.micro_tokens == choice.micro_tokens
    assert choice.made_for == made_for
    return known, choice


def test_a_choice_is_taken_again_under_the_same_circumstances(alone, tmp_path: Path, pairs: Path) -> None:
    known, first = choose_in(tmp_path, pairs)
    assert known is None and first.micro_tokens == 32 * 32, "all rows of a step: fewer than the limit of a CPU"
    assert CPU_TOKENS > 32 * 32

    # What is recorded counts, not what would be chosen now.
    path = tmp_path / RECORD
    choices = json.loads(path.read_text())
    choices[0]["micro_tokens"] = 320
    path.write_text(json.dumps(choices))
    assert choose_in(tmp_path, pairs)[1].micro_tokens == 320
    assert path.read_text() == json.dumps(choices), "nothing was chosen, nothing is recorded"

    path.write_text("{damaged")
    assert choose_in(tmp_path, pairs) == (None, first)


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
    choose_in(tmp_path, pairs)
    assert choose_in(tmp_path, pairs, change)[0] is None
    known, choice = choose_in(tmp_path, pairs)
    assert known == choice, "the first one still holds for what it was made for"


def test_free_memory_may_differ_a_little(tmp_path: Path) -> None:
    record(str(tmp_path), Choice(64, {"ranks": 1, "free_bytes": 80 * 10**9}))
    found = [gb for gb in range(60, 101) if recorded(str(tmp_path), {"ranks": 1, "free_bytes": gb * 10**9})]
    assert found == list(range(72, 89))
    assert not recorded(str(tmp_path), {"ranks": 2, "free_bytes": 80 * 10**9})


def test_a_choice_that_ran_out_of_memory_is_halved_until_none_is_left(alone, tmp_path: Path, pairs: Path) -> None:
    """Whichever rank recorded it, and whatever was chosen before."""
    sizes = []
    choice = choose_in(tmp_path, pairs)[1]
    while choice.micro_tokens > 32:
        sizes.append(choice.micro_tokens)
        record(str(tmp_path), replace(choice, ran_out_of_memory=True))
        failed, choice = choose_in(tmp_path, pairs)
        assert failed is not None and failed.micro_tokens == sizes[-1]
        assert choose_in(tmp_path, pairs) == (choice, choice), "and then it stays"
    assert sizes == [1024, 512, 256, 128, 64]

    record(str(tmp_path), replace(choice, ran_out_of_memory=True))
    with pytest.raises(UsageError, match="not even 32 tokens of this model fit into the"):
        choose_in(tmp_path, pairs)


def test_a_run_out_of_memory_says_so_and_the_next_start_takes_half(training, tmp_path: Path) -> None:
    """The memory that is refused is this machine's own, asked for in the third step's forward pass."""
    auto = {"batch__micro_batch": "none", "batch__micro_tokens": "auto", "checkpoint__every": 2}
    done = training.warm(1, tmp_path / "run", "exhaust:0:3:3", **auto)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "out of memory" in line]
    assert line == (
        f"clozeline: {tmp_path}/run: out of memory on cpu, with 512 tokens at once, which batch.micro_tokens auto "
        f"chose. {tmp_path}/run/micro_batches.json records it: the same command resumes from the last checkpoint and "
        "takes half."
    )

    done = training.warm(1, tmp_path / "run", **auto)
    assert done.returncode == 0, done.stderr
    assert "256 tokens at once on each rank, because 512 ran out of memory" in done.stdout + done.stderr
    assert list(training.losses(tmp_path / "run")) == list(range(1, 13))
    choices = json.loads((tmp_path / "run" / RECORD).read_text())
    assert [(each["micro_tokens"], each["ran_out_of_memory"]) for each in choices] == [
        (512, False),
        (512, True),
        (256, False),
    ]


def test_a_micro_batch_of_the_recipe_s_own_that_is_too_large_is_named(training, tmp_path: Path) -> None:
    done = training.warm(1, tmp_path / "run", "exhaust:0:1:1")
    assert done.returncode == 1
    assert "out of memory on cpu, with batch.micro_batch 4. Lower it, or set batch.micro_batch=none" in done.stderr
    assert "Traceback" not in done.stderr
