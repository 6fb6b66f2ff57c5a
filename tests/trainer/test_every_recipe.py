"""Every shipped recipe, shrunk: each of its phases is trained for two steps, and the result is exported.

All in this process. What is not shrunk is what the recipe decides: family, optimizer, masks, schedules and ramps.
"""

from __future__ import annotations

import json
import math
import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.conftest import ESM2_VOCABULARY, Command, made, rows
from tests.trainer.conftest import logged
from tests.trainer.one_rank import group_of_one
from trainer.config.load import SHAPE_KEYS, load_recipe, names_shape, recipe_comment, recipe_names, recipe_text
from trainer.config.phases import phases_of
from trainer.distributed.stop import StopRequest
from trainer.export.convert import export
from trainer.train import pretrain

STEPS = 2
LONGEST = 32
"""Steps of a phase, and tokens of the longest row of the small pairs."""

MODEL = {
    "num_hidden_layers": 3,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "embedding_size": 8,
    "generator_size": 0.5,
    "max_position_embeddings": LONGEST,
}
"""Small values of the sizes that a recipe states. Without its vocab_size, that of the pairs counts."""

BATCH = {
    "global_batch": 8,
    "global_tokens": 256,
    "micro_batch": 4,
    "micro_tokens": 128,
    "ramp_from": 128,
    "ramp_steps": 1,
}


OTHER_SIZES = (
    *("adapt_domain", "albert_large", "albert_xlarge", "albert_xxlarge", "bert_large", "cpu_hour", "cpu_night"),
    *("electra_base", "esm2_35m", "esm2_150m", "ettin_17m", "ettin_32m", "ettin_68m", "ettin_150m", "megatron_1.3b"),
    *("megatron_3.9b", "mmbert_base", "modernbert_large", "node_hour", "roberta_large", "tiny", "xlnet_large"),
)
"""Recipes that, shrunk, have nothing but rates that others do not have. They are for the night."""


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    with group_of_one():
        yield


def smaller(table: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """The table with small values of the keys that it has."""
    return table | {key: value for key, value in sizes.items() if key in table}


def shrunk(name: str, pairs: Path, run: Path) -> dict[str, Any]:
    """The content of a shipped recipe for small pairs."""
    content = tomllib.loads(recipe_text(name))
    phases = content.get("phases", [])
    short = {"warmup_steps": 1, "decay_steps": STEPS - 1}
    data = {"pairs": str(pairs), "max_length": LONGEST}

    shape = dict.fromkeys(SHAPE_KEYS, 0) | {"family": "roberta"} if not names_shape(content.get("model", {})) else {}
    content["model"] = smaller(shape | content["model"], MODEL)
    content["model"].pop("vocab_size", None)
    content["data"] = smaller(content["data"], data)
    content["batch"] = smaller(content["batch"], BATCH)
    content["schedule"] = smaller(content.get("schedule", {}), short)
    for phase in phases:
        phase["steps"] = STEPS
        phase["data"] = smaller(phase.get("data", {}), data)
        phase["batch"] = smaller(phase.get("batch", {}), BATCH)
        phase["schedule"] = smaller(phase.get("schedule", {}), short)

    content["run"] = {"output": str(run), "max_steps": STEPS * max(1, len(phases)), "log_every": 1}
    content["engine"] = content.get("engine", {}) | {"precision": "fp32"}
    return content


@pytest.fixture(scope="module")
def protein_pairs(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of proteins, of one letter a token."""
    folder = tmp_path_factory.mktemp("proteins")
    letters = random.Random(0)
    proteins = ["".join(letters.choices("LAGVSERTIDPKQNFYMHWC", k=40)) for _ in range(40)]
    (folder / "proteins.txt").write_text("\n".join(proteins) + "\n")

    lines = ("--format", "text", "--text_layout", "line", "--sentence_splitter", "newline")
    text = made(command, folder / "text", "shard", "--input", folder / "proteins.txt", *lines)
    return rows(command, "pairs", text, ESM2_VOCABULARY, "doc_sentences", LONGEST)


def pairs_of(name: str, request: pytest.FixtureRequest) -> Path:
    """Small pairs of the kind that the recipe's comment asks for."""
    if name.startswith("esm2"):
        return request.getfixturevalue("protein_pairs")
    fixture = "byte_rows" if "bytebpe" in recipe_comment(name, "Pairs") else "pairs"
    return request.getfixturevalue(fixture)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough) if name in OTHER_SIZES else name for name in recipe_names()],
)
def test_a_recipe_is_built_stepped_and_exported(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    content = shrunk(name, pairs_of(name, request), tmp_path / "run")
    path = tmp_path / f"{name}.toml"
    path.write_text(tomli_w.dumps(content))
    recipe = load_recipe(str(path), [])

    pretrain(recipe, StopRequest())
    lines = logged(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, recipe.run.max_steps + 1))
    assert phases_of(recipe)[-1].last_step == recipe.run.max_steps
    assert all(math.isfinite(line["loss"]) and line["loss"] > 0 for line in lines)

    # The export is loaded by transformers and compared before anything is written.
    export(str(tmp_path / "run"), str(tmp_path / "hf"), step=None)
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["hidden_size" if "hidden_size" in config else "d_model"] == recipe.model.hidden_size
