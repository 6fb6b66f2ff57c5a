"""Recipe values that no run could be made of: refused by name with exit code 2, before torch is imported."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from trainer.config.load import load_recipe
from trainer.config.parse import apply_overrides
from trainer.config.record import dump_recipe
from trainer.config.schema import Recipe
from trainer.finetune.task import Task

TINY = "tests/recipes/small_bert.toml"

REFUSED: dict[str, tuple[str, str]] = {
    "timeout-inf": ("engine.timeout_seconds=inf", "engine.timeout_seconds"),
    "timeout-huge": ("engine.timeout_seconds=1e300", "engine.timeout_seconds"),
    "cache-inf": ("data.cache_gigabytes=inf", "data.cache_gigabytes"),
    "cache-huge": ("data.cache_gigabytes=1e300", "data.cache_gigabytes"),
    "weights-nan": ("data.weights=[nan]", "data.weights"),
    "weights-inf": ("data.weights=[inf]", "data.weights"),
    "betas-5": ("optimizer.betas=[5,5]", "optimizer.betas"),
    "betas-nan": ("optimizer.betas=[nan,nan]", "optimizer.betas"),
    "betas-1": ("optimizer.betas=[0.9,1.0]", "optimizer.betas"),
    "betas-three": ("optimizer.betas=[0.9,0.9,0.9]", "optimizer.betas: too many elements, found [0.9, 0.9, 0.9]."),
    "std-inf": ("model.initializer_range=inf", "model.initializer_range"),
    "std-huge": ("model.initializer_range=1e39", "model.initializer_range"),
    "width-1e11": ("model.hidden_size=100000000000", "model.hidden_size"),
    "layers-1e12": ("model.num_hidden_layers=1000000000000", "model.num_hidden_layers"),
    "lr-nan": ("optimizer.lr=nan", "optimizer.lr"),
    "lr-true": ("optimizer.lr=true", "optimizer.lr: expected a number, found True."),
    "steps-true": ("run.max_steps=true", "run.max_steps: expected a number, found True."),
    "stage-true": ("engine.zero_stage=true", "engine.zero_stage: expected a number, found True."),
    "weights-true": ("data.weights=[true]", "data.weights: expected a number, found [True]."),
    "steps-text": ("run.max_steps=many", "run.max_steps: expected a whole number, found 'many'. Length of the run"),
    "steps-date": ("run.max_steps=2026-11-21", "run.max_steps: expected a whole number, found datetime.date"),
    "family-case": ("model.family=BERT", "or 'xlnet', found 'BERT'. Did you mean bert? Architecture.\n"),
    "output-empty": ("run.output=", "run.output: expected a text that is not empty, found ''."),
    "output-quote": (
        'run.output="x',
        'run.output="x begins with a quote but is no text in quotes. Leave the quotes out',
    ),
    "pairs-bare": ("data.pairs=[a, b c]", """as in 'data.pairs=["a","b c"]'."""),
    "pairs-half-bare": ('data.pairs=["a",b]', """as in 'data.pairs=["a","b"]'."""),
    "betas-bare": ("optimizer.betas=[0.9 0.98]", "optimizer.betas: expected a list, found '[0.9 0.98]'."),
    "weights-words": ("data.weights=[a,b]", "data.weights: expected a list, or a number, found '[a,b]'."),
    "pairs-numbers": ("data.pairs=[a1,2]", "is no list: quote each text"),
    "pairs-number": ('data.pairs=["a",2]', "data.pairs[1]: expected a text, found 2. Folder written by"),
    "section-unknown": ("foo.seed=1", "unknown key foo. The file has model, data, masking, "),
    "table-as-number": ("deepspeed.wandb=5", "deepspeed.wandb: expected a table, found 5."),
    "text-as-switch": ("deepspeed.zero_optimization.overlap_comm=abc", "expected true or false, found 'abc'"),
    "table-as-switch": (
        "deepspeed.memory_breakdown.x=1",
        "memory_breakdown: expected true or false, found {'x': 1}",
    ),
    "typo": (
        "deepspeed.zero_optimization.reduce_bucket=5e8",
        "unknown key deepspeed.zero_optimization.reduce_bucket. "
        "Did you mean deepspeed.zero_optimization.reduce_bucket_size?",
    ),
}
REFUSED |= {
    f"bucket-{value}": (
        f"deepspeed.zero_optimization.reduce_bucket_size={value}",
        f"deepspeed.zero_optimization.reduce_bucket_size: {message}",
    )
    for value, message in {
        "0": "input should be greater than 0",
        "0.5": "expected a whole number",
        "true": "expected a number",
        "nan": "input should be a finite number",
        '"5e8"': "expected a whole number",
    }.items()
}
REFUSED |= {
    key: (f"deepspeed.{key}=1", f"unknown key deepspeed.{key}. ")
    for key in (
        "train_batch_size",
        "optimizer",
        "bf16",
        "communication_data_type",
        "steps_per_print",
        "timers",
        "activation_checkpointing",
        "zero_optimization.stage",
        "zero_optimization.cpu_offload",
        "zero_optimization.round_robin_gradients",
        "comet.api_key",
        "comms_logger",
        "foo",
    )
}


def main_in_turn(tries: dict[str, str]) -> dict[str, list]:
    """(exit code, stderr, heavy modules loaded) of the trainer's command for each change."""
    from trainer.cli import main

    outcomes = {}
    for name, change in tries.items():
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            try:
                code: int | str = main(["--config", TINY, "--set", change])
            except BaseException as error:
                code = repr(error)
        outcomes[name] = [code, told.getvalue(), [module for module in ("torch", "deepspeed") if module in sys.modules]]
    return outcomes


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list]:
    """One process for all tries; a try that is accepted would load torch and train."""
    code = (
        "import json, sys\n"
        "from tests.trainer.config.test_parse import main_in_turn\n"
        "print(json.dumps(main_in_turn(json.loads(sys.argv[1]))))"
    )
    tries = json.dumps({name: change for name, (change, _) in REFUSED.items()})
    done = subprocess.run([sys.executable, "-c", code, tries], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", REFUSED)
def test_values_are_refused_before_anything_heavy_is_loaded(outcomes: dict[str, list], name: str) -> None:
    code, told, loaded = outcomes[name]
    key = REFUSED[name][1]
    assert (code, loaded) == (2, []), told
    assert told.startswith("clozeline: ") and told.count("\n") == 1 and key in told


@pytest.mark.parametrize(
    ("change", "section", "key", "expected"),
    [
        ("run.output=20261121", "run", "output", "20261121"),
        ("run.output=2026-11-21", "run", "output", "2026-11-21"),
        ("run.output=true", "run", "output", "true"),
        ("run.output=1e5", "run", "output", "1e5"),
        ("data.pairs=7", "data", "pairs", "7"),
        ("data.pairs=['a', 'b']", "data", "pairs", ["a", "b"]),
        ("data.vocab=5", "data", "vocab", "5"),
        ("run.output='quoted'", "run", "output", "quoted"),
        ("run.output=two\nlines=5", "run", "output", "two\nlines=5"),
        ("run.output=1\nlines=5", "run", "output", "1\nlines=5"),
    ],
)
def test_a_text_key_takes_words_that_look_like_numbers(change: str, section: str, key: str, expected: object) -> None:
    recipe = load_recipe(TINY, [change])
    assert getattr(getattr(recipe, section), key) == expected


def test_a_table_is_written_as_in_toml() -> None:
    content: dict[str, Any] = {}
    apply_overrides(content, ['data.extra={easy="a.jsonl"}'], Task)
    assert content == {"data": {"extra": {"easy": "a.jsonl"}}}


@pytest.mark.parametrize("change", ["run.seed=7", "run.seed = 7", " run.seed=7 ", 'run.seed="7"'])
def test_spaces_and_quotes_around_a_number_do_no_harm(change: str) -> None:
    assert load_recipe(TINY, [change]).run.seed == 7


TABLES: dict[str, dict[str, Any]] = {
    "text": {"run": {"output": 'two\nlines\tand "quotes" \\ and \x07', "max_steps": 1800}},
    "tables-in-tables": {"deepspeed": {"memory_breakdown": False, "wandb": {"project": "\u00e9 = 1"}}},
    "phases": {
        "phases": [
            {"steps": 900, "data": {"pairs": ["a", "b"]}},
            {"steps": 900, "batch": {"global_batch": 8, "micro_batch": 4}},
        ]
    },
}


@pytest.mark.parametrize("name", TABLES)
def test_any_recipe_is_written_as_toml(name: str) -> None:
    """Quotes and control characters: what is written is read as it was."""
    content = tomllib.loads(Path(TINY).read_text()) | TABLES[name]
    recipe = Recipe.model_validate(content)
    assert Recipe.model_validate(tomllib.loads(dump_recipe(recipe))) == recipe
