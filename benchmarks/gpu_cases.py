"""What `make gpu` measures, in which order: models, rows, and the size of a step, which all sides share."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
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


PROFILED_STEPS = 3
"""Steps of ours that are recorded after the timed ones."""

NO_RIVAL = "no rival: transformers' ELECTRA is the discriminator alone"


@dataclass(frozen=True)
class Case:
    """Rows that a recipe trains on. low, high: the lengths of the shortest and longest row; they are evenly spread.

    note: what a reader of the figures should know.
    """

    recipe: str
    rows: str
    low: int
    high: int
    note: str = ""


# Rows of 8 to 500 tokens have Wikipedia's mean length of 254 at a maximum of 512.
CASES = (
    Case("bert_large", "128", 128, 128),
    Case("bert_large", "packed", 8, 500),
    Case("bert_large", "512", 512, 512),
    Case("modernbert_base", "1024", 1024, 1024),
    Case("modernbert_base", "8192", 8192, 8192),
    Case("gpu_day", "128", 128, 128, note="a small model"),
    Case("bert_base", "128", 128, 128),
    Case("bert_base", "512", 512, 512),
    Case("bert_base", "packed", 8, 500),
    Case("electra_base", "128", 128, 128, note=NO_RIVAL),
    Case("roberta_base", "512", 512, 512),
    Case("albert_base", "512", 512, 512),
)

TESTS = "tests"
"""Items that are no case: the tests marked gpu, by file."""

SIDES = ("ours", "plain", "deepspeed")


@dataclass(frozen=True)
class Item:
    """One measurement. recipe, rows: those of a case, or TESTS and a file's name."""

    recipe: str
    rows: str
    side: str
    gpus: int = 1

    @property
    def name(self) -> str:
        """Return what `--only` calls it, the same for all sides."""
        return f"{self.recipe} {self.rows}"

    @property
    def slug(self) -> str:
        """Return a name for files."""
        several = f"_{self.gpus}_gpus" if self.gpus > 1 else ""
        return f"{self.name}{several}".replace(" ", "_")

    @property
    def case(self) -> Case:
        """Return the case. Raises StopIteration if the item is none."""
        return next(case for case in CASES if (case.recipe, case.rows) == (self.recipe, self.rows))


def _both(*names: str) -> list[Item]:
    recipes_and_rows = [name.split(" ") for name in names]
    return [Item(recipe, rows, side) for recipe, rows in recipes_and_rows for side in ("ours", "plain")]


# The most valuable first: a card is lent for minutes.
ITEMS = (
    *_both("bert_large 128", "bert_large packed", "bert_large 512", "modernbert_base 1024", "modernbert_base 8192"),
    Item("gpu_day", "128", "ours"),
    *(Item(TESTS, file, "ours") for file in ("test_attention", "test_model", "test_training", "test_finetune")),
    *_both("bert_base 128", "bert_base 512", "bert_base packed"),
    Item("electra_base", "128", "ours"),
    *_both("roberta_base 512", "albert_base 512"),
    *(Item("bert_large", rows, "deepspeed") for rows in ("128", "packed", "512")),
    *(Item("bert_base", rows, "deepspeed") for rows in ("128", "512", "packed")),
)
SCALED = "bert_large 128"
"""What `--gpus` measures, right after the same on one GPU."""

TINY = {
    "model.num_hidden_layers": 2,
    "model.hidden_size": 32,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "model.vocab_size": 200,
    "engine.precision": "fp32",
}


def items_of(only: list[str] | None, gpus: list[int], dry: bool) -> list[Item]:
    """Return the items of these recipes ("bert_base") and those with these names ("bert_base 512"), in order.

    only: None for all; in a dry run, for one case and the tests. gpus: further numbers of GPUs for SCALED.
    Raises ValueError for a name of neither.
    """
    items = []
    for item in ITEMS:
        items.append(item)
        if item.name == SCALED and item.side == "plain":
            items += [Item(item.recipe, item.rows, "ours", number) for number in gpus]

    known = {item.recipe for item in items} | {item.name for item in items}
    for name in only or []:
        if name not in known:
            raise ValueError(f"no case is called {name!r}. Expected one of {', '.join(map(repr, sorted(known)))}.")
    if only is None:
        return [item for item in items if not dry or item.name == SCALED or item.recipe == TESTS]
    return [item for item in items if item.recipe in only or item.name in only]


@dataclass(frozen=True)
class Bench:
    """Settings that all runs share. ends_at: of time.monotonic(). dry: whether to run tiny models on a CPU.

    output: for results and logs. scratch: for pairs, runs and compiled code, which are of no use afterwards.
    label: of the code that is measured.
    """

    output: Path
    scratch: Path
    ends_at: float
    dry: bool
    label: str = ""

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

    @property
    def steps_before_profile(self) -> int:
        # The recorder starts a step early, when the last timed step must be over.
        return self.warmup_steps + self.timed_steps + 2

    @property
    def steps(self) -> int:
        """Return the steps of a run of ours, of which the last is not waited for."""
        return self.steps_before_profile + PROFILED_STEPS + 1

    def limited_to(self, seconds: float) -> Bench:
        """Return the same with at most this much time from now."""
        return replace(self, ends_at=min(self.ends_at, time.monotonic() + seconds))


def step_size(bench: Bench, item: Item) -> tuple[int, str]:
    """Return the size of an optimizer step of a case, in "rows" or "tokens": the same for all sides.

    Several GPUs have one each of that.
    """
    case = item.case
    if bench.dry:
        return 400, "tokens"
    if case.low == case.high:
        return item.gpus * STEP_TOKENS // case.high, "rows"
    return item.gpus * STEP_TOKENS_PACKED, "tokens"


def write_case(bench: Bench, item: Item) -> Path:
    """Write a case's pairs, unless they are there: enough rows that no side sees one twice.

    In a dry run, every case has rows of 8 to 32.
    """
    folder = bench.scratch / "pairs" / item.slug
    if folder.exists():
        return folder

    case = item.case
    low, high = (8, LONGEST_DRY) if bench.dry else (case.low, case.high)
    tokens = (bench.steps + 1) * STEP_TOKENS * item.gpus
    count = 400 if bench.dry else 2 * tokens // (low + high)

    shape = shape_of(bench, case)
    kind = "wordpiece" if shape.pair_head else "bytebpe"
    write_pairs(folder, spread_lengths(low, high, count), longest_of(bench, case), kind, shape.vocab_size)
    return folder


def longest_of(bench: Bench, case: Case) -> int:
    """Return the length that rows are padded to: a power of two, or 32 in a dry run."""
    return LONGEST_DRY if bench.dry else 1 << (case.high - 1).bit_length()


def shape_of(bench: Bench, case: Case) -> EncoderShape:
    """Return the shape of a case's model."""
    recipe = load_recipe(str(ROOT / f"trainer/recipes/{case.recipe}.toml"), changes(bench))
    return encoder_shape(recipe.model, recipe.model.vocab_size or 30_000)


def changes(bench: Bench) -> list[str]:
    """Return the `--set` changes of every recipe: no phases, and in a dry run a tiny model."""
    return ["phases=none", *(f"{key}={value}" for key, value in TINY.items() if bench.dry)]
