"""The cases of the benchmark of `make gpu`: models, rows, and the size of a step, which all sides share."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_pairs import spread_lengths, write_pairs
from trainer.config.load import load_recipe
from trainer.models.families import encoder_shape
from trainer.models.shape import EncoderShape

ROOT = Path(__file__).resolve().parents[1]

STEP_TOKENS = 65_536
"""The tokens of a step whose rows all have the same length: the most that the trainer puts into one micro-batch."""

STEP_TOKENS_PACKED = 64_000
"""The tokens of a step whose rows differ in length. `batch.shape = "fixed"` pads them by 2%, to one micro-batch."""

WARMUP_STEPS = 10
TIMED_STEPS = 20

LONGEST_DRY = 32
SEED = 1
"""The seed of the order of rows, the same for every side."""


@dataclass(frozen=True)
class Case:
    """One line of the table. low, high: the lengths of the shortest and longest row; lengths are evenly spread."""

    recipe: str
    rows: str
    low: int
    high: int


# The most important cases first. Rows of 8 to 500 tokens have Wikipedia's mean length of 254 at a maximum of 512.
CASES = (
    Case("bert_large", "128", 128, 128),
    Case("bert_large", "512", 512, 512),
    Case("bert_large", "packed, mean 254", 8, 500),
    Case("bert_base", "128", 128, 128),
    Case("bert_base", "512", 512, 512),
    Case("bert_base", "packed, mean 254", 8, 500),
    Case("roberta_base", "512", 512, 512),
    Case("albert_base", "512", 512, 512),
)

TINY = {
    "model.num_hidden_layers": 2,
    "model.hidden_size": 32,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "model.vocab_size": 200,
    "engine.precision": "fp32",
}


def cases_of(names: list[str] | None) -> list[Case]:
    """Return the cases of these recipes ("bert_base") and those with these names ("bert_base 512"); all for None.

    Raises ValueError for a name of neither.
    """
    if names is None:
        return list(CASES)

    known = {case.recipe for case in CASES} | {name_of(case) for case in CASES}
    for name in names:
        if name not in known:
            raise ValueError(f"no case is called {name!r}. Expected one of {', '.join(map(repr, sorted(known)))}.")
    return [case for case in CASES if case.recipe in names or name_of(case) in names]


def name_of(case: Case) -> str:
    return f"{case.recipe} {case.rows}"


@dataclass(frozen=True)
class Bench:
    """Settings that all runs share. ends_at: of time.monotonic(). dry: whether to run tiny models on a CPU."""

    output: Path
    ends_at: float
    dry: bool

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    @property
    def seconds_left(self) -> float:
        return self.ends_at - time.monotonic()

    @property
    def warmup_steps(self) -> int:
        return 2 if self.dry else WARMUP_STEPS

    @property
    def timed_steps(self) -> int:
        return 2 if self.dry else TIMED_STEPS


@dataclass(frozen=True)
class StepSize:
    """The size of an optimizer step: `size` rows, or rows of about `size` tokens."""

    size: int
    by_tokens: bool


def step_size(bench: Bench, case: Case) -> StepSize:
    """Return the size of an optimizer step of a case, which all sides share."""
    if bench.dry:
        return StepSize(400, by_tokens=True)
    if case.low == case.high:
        return StepSize(STEP_TOKENS // longest_of(bench, case), by_tokens=False)
    return StepSize(STEP_TOKENS_PACKED, by_tokens=True)


def write_case(bench: Bench, case: Case) -> Path:
    """Write a case's pairs: enough rows that no side sees one twice. In a dry run, every case has rows of 8 to 32."""
    low, high = (8, LONGEST_DRY) if bench.dry else (case.low, case.high)
    tokens = (bench.warmup_steps + bench.timed_steps + 2) * STEP_TOKENS
    count = 400 if bench.dry else 2 * tokens // (low + high)

    shape = shape_of(bench, case)
    folder = bench.output / "pairs"
    shutil.rmtree(folder, ignore_errors=True)
    kind = "bytebpe" if shape.family == "roberta" else "wordpiece"
    write_pairs(folder, spread_lengths(low, high, count), longest_of(bench, case), kind, shape.vocab_size)
    return folder


def longest_of(bench: Bench, case: Case) -> int:
    """Return the length that rows are padded to: 128 or 512, or 32 in a dry run."""
    if bench.dry:
        return LONGEST_DRY
    return 128 if case.high <= 128 else 512


def shape_of(bench: Bench, case: Case) -> EncoderShape:
    """Return the shape of a case's model."""
    recipe = load_recipe(str(ROOT / f"trainer/recipes/{case.recipe}.toml"), changes(bench))
    return encoder_shape(recipe.model, recipe.model.vocab_size or 30_000)


def changes(bench: Bench) -> list[str]:
    """Return the `--set` changes that make a recipe small enough for a dry run; none for a real run."""
    return [f"{key}={value}" for key, value in TINY.items()] if bench.dry else []
