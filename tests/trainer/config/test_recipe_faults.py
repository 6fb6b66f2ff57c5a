"""Recipe values that no run could be made of: refused by name with exit code 2, before torch is imported."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from schemas.errors import UsageError
from trainer.config.load import load_recipe
from trainer.config.schema import Recipe
from trainer.config.text import dump_recipe

TINY = "tests/recipes/small_bert.toml"

REFUSED: dict[str, tuple[list[str], str]] = {
    "K1-timeout-inf": (["engine.timeout_seconds=inf"], "engine.timeout_seconds"),
    "K2-cache-inf": (["data.cache_gigabytes=inf"], "data.cache_gigabytes"),
    "K3-weights-nan": (["data.weights=[nan]"], "data.weights"),
    "K4-weights-inf": (["data.weights=[inf]"], "data.weights"),
    "K5-betas-5": (["optimizer.betas=[5,5]"], "optimizer.betas"),
    "K6-betas-nan": (["optimizer.betas=[nan,nan]"], "optimizer.betas"),
    "K7-initial_std-inf": (["model.initializer_range=inf"], "model.initializer_range"),
    "K8-width-1e11": (["model.hidden_size=100000000000", "model.num_attention_heads=1"], "model.hidden_size"),
    "K9-wandb-5": (["deepspeed.wandb=5"], "[deepspeed] wandb"),
    "timeout-huge": (["engine.timeout_seconds=1e300"], "engine.timeout_seconds"),
    "cache-huge": (["data.cache_gigabytes=1e300"], "data.cache_gigabytes"),
    "initial_std-huge": (["model.initializer_range=1e39"], "model.initializer_range"),
    "lr-nan": (["optimizer.lr=nan"], "optimizer.lr"),
    "beta-1": (["optimizer.betas=[0.9,1.0]"], "optimizer.betas"),
    "layers-1e12": (["model.num_hidden_layers=1000000000000"], "model.num_hidden_layers"),
    "deepspeed-comet-text": (["deepspeed.comet=on"], "[deepspeed] comet"),
    "deepspeed-tensorboard-5": (["deepspeed.tensorboard=5"], "[deepspeed] tensorboard"),
    "deepspeed-aio-5": (["deepspeed.aio=5"], "[deepspeed] aio"),
    "alias-cpu_offload": (["deepspeed.zero_optimization.cpu_offload=true"], "zero_optimization.cpu_offload"),
    "alias-cpu_offload_param": (
        ["deepspeed.zero_optimization.cpu_offload_param=true"],
        "zero_optimization.cpu_offload_param",
    ),
    "alias-amp": (["deepspeed.amp.enabled=true"], "[deepspeed] amp"),
    "alias-torch_autocast": (["deepspeed.torch_autocast.enabled=true"], "[deepspeed] torch_autocast"),
    "alias-bfloat16": (["deepspeed.bfloat16.enabled=true"], "[deepspeed] bfloat16"),
    "communication-dtype": (["deepspeed.communication_data_type=bf16"], "communication_data_type is set by"),
    "steps_per_print": (["deepspeed.steps_per_print=5"], "[deepspeed] steps_per_print is set by run.log_every"),
    "timers": (["deepspeed.timers.throughput.enabled=true"], "[deepspeed] timers is set by"),
    "zero-typo": (
        ["deepspeed.zero_optimization.reduce_bucket=5e8"],
        "Did you mean zero_optimization.reduce_bucket_size?",
    ),
    "overlap-text": (
        ["deepspeed.zero_optimization.overlap_comm=abc"],
        "overlap_comm must be true or false, found 'abc'",
    ),
    "bucket-half": (
        ["deepspeed.zero_optimization.reduce_bucket_size=0.5"],
        "reduce_bucket_size must be a whole number",
    ),
    "bucket-true": (
        ["deepspeed.zero_optimization.reduce_bucket_size=true"],
        "reduce_bucket_size must be a whole number",
    ),
    "bucket-inf": (["deepspeed.zero_optimization.reduce_bucket_size=inf"], "reduce_bucket_size must be a whole number"),
    "bucket-nan": (["deepspeed.zero_optimization.reduce_bucket_size=nan"], "reduce_bucket_size must be a whole number"),
    "curriculum": (["deepspeed.curriculum_learning.enabled=true"], "[deepspeed] curriculum_learning is no key"),
    "sparse": (["deepspeed.sparse_gradients=true"], "[deepspeed] sparse_gradients is no key"),
    "tensor_parallel": (["deepspeed.tensor_parallel.autotp_size=2"], "[deepspeed] tensor_parallel is no key"),
    "sequence_parallel": (["deepspeed.sequence_parallel_size=2"], "[deepspeed] sequence_parallel_size is no key"),
    "unknown": (["deepspeed.foo=1"], "[deepspeed] foo is no key"),
    "wandb-number": (["deepspeed.wandb.project=5"], "[deepspeed] wandb.project must be text in quotes, found 5"),
    "elasticity": (["deepspeed.elasticity.enabled=true"], "[deepspeed] elasticity"),
}


def main_in_turn(tries: dict[str, list[str]]) -> dict[str, list]:
    """(exit code, stderr, heavy modules loaded) of the trainer's command for each list of changes."""
    from trainer.cli import main

    outcomes = {}
    for name, changes in tries.items():
        flags = [part for change in changes for part in ("--set", change)]
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            try:
                code: int | str = main(["--config", TINY, *flags])
            except BaseException as error:
                code = repr(error)
        outcomes[name] = [code, told.getvalue(), [module for module in ("torch", "deepspeed") if module in sys.modules]]
    return outcomes


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list]:
    """One process for all tries; a try that is accepted would load torch and train."""
    code = (
        "import json, sys\n"
        "from tests.trainer.config.test_recipe_faults import main_in_turn\n"
        "print(json.dumps(main_in_turn(json.loads(sys.argv[1]))))"
    )
    tries = json.dumps({name: changes for name, (changes, _) in REFUSED.items()})
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


def test_a_number_key_does_not_take_words() -> None:
    with pytest.raises(UsageError, match=r"run\.max_steps: .*found datetime\.date"):
        load_recipe(TINY, ["run.max_steps=2026-11-21"])


def with_phases(content: dict[str, Any], phases: list[dict[str, Any]]) -> dict[str, Any]:
    return content | {"phases": phases}


def test_a_value_of_a_phase_is_refused(tmp_path: Path) -> None:
    content = tomllib.loads(Path(TINY).read_text())
    bad = with_phases(content, [{"steps": 1800, "optimizer": {"lr": float("inf")}}])
    (tmp_path / "r.toml").write_text(tomli_w.dumps(bad))
    with pytest.raises(UsageError, match=r"phase 1: optimizer\.lr"):
        load_recipe(str(tmp_path / "r.toml"), [])


TABLES: dict[str, dict[str, Any]] = {
    "text": {"run": {"output": 'two\nlines\tand "quotes" \\ and \x07', "max_steps": 1800}},
    "quoted-keys": {"deepspeed": {"a key with spaces": 1, "comms_logger": {"x.y": {"\u00e9": "z"}}}},
    "dates-and-tables": {"deepspeed": {"since": date(2026, 11, 21), "empty": [], "inner": {"a": [1, {"b": "c"}]}}},
    "phases": {
        "phases": [
            {"steps": 900, "data": {"pairs": ["a", "b"]}},
            {"steps": 900, "batch": {"global_batch": 8, "micro_batch": 4}},
        ]
    },
}


@pytest.mark.parametrize("name", TABLES)
def test_any_recipe_is_written_as_toml(name: str) -> None:
    """Keys that need quotes, and control characters: what is written is read as it was."""
    content = tomllib.loads(Path(TINY).read_text()) | TABLES[name]
    recipe = Recipe.model_validate(content)
    assert Recipe.model_validate(tomllib.loads(dump_recipe(recipe))) == recipe
