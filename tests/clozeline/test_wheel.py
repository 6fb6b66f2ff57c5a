"""Clozeline as a user gets it: a wheel in a fresh environment, used outside of the clone."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from tests.deploy.wheel_environment import build_wheel, make_environment
from tests.processes import ran

PACKAGES = ("clozeline", "pipeline", "schemas", "trainer")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("environment"), wheel).root


def test_the_wheel_holds_every_file_that_the_packages_read(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    for package in PACKAGES:
        assert f"{package}/py.typed" in packed
        for path in Path(package).rglob("*"):
            is_source = path.is_file() and "__pycache__" not in path.parts
            assert not is_source or path.as_posix() in packed, path


@pytest.mark.thorough
def test_from_text_to_an_export_outside_of_the_clone(environment: Path, corpus: Path, tmp_path: Path) -> None:
    variables = os.environ | {"PATH": str(environment / "bin"), "DS_ACCELERATOR": "cpu"}
    variables.pop("PYTHONPATH", None)

    def clozeline(line: str) -> str:
        command = [str(environment / "bin/clozeline"), *line.split()]
        done = ran(command, cwd=tmp_path, env=variables)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout

    assert "commands" in clozeline("--help")
    assert clozeline("--version").startswith("clozeline ")
    assert "bert_large_lamb" in clozeline("recipes")

    clozeline(f"shard --input {corpus} --output text --num_shards 2")
    clozeline("vocab --text text --output vocab --model wordpiece --size 160")
    clozeline("pairs --text text --vocab vocab --output pairs --objective nsp --max_length 32")
    assert "pairs" in clozeline("verify pairs")

    sizes = "--set model.hidden_size=32 --set model.intermediate_size=64 --set schedule.warmup_steps=1"
    steps = "--set run.max_steps=2 --set run.log_every=1 --set checkpoint.every=2"
    clozeline(f"train --config tiny --set data.pairs=pairs --set run.output=run {sizes} {steps}")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]

    clozeline("export run --output hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["hidden_size"] == 32 and config["clozeline_version"] != "unknown"
