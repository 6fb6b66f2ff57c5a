"""The Flex Templates: their parameters are the flags of the step, patterns of numbers and choices fit, and their
launcher does not wait.

Not proven: Google's launcher program, and the service's own check of the parameters.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from pipeline.beam.engines import check_flags
from pipeline.cli import COMMANDS, parser
from pipeline.flags import flags_of
from tests.processes import ran

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "deploy/dataflow"
STEPS = ("shard", "vocab", "pairs")
OF_BEAM = {"temp_location", "sdk_container_image"}
NOT_OFFERED = {"sample", "help", "verbose", "dry_run", "no_wait"}
"""Flags that are no parameters: what they show would be in the launcher's log alone, and the launcher never waits."""

GOOD = {
    "overwrite": ["true", "false"],
    "lowercase": ["true", "false"],
    "num_shards": ["1", "100000"],
    "max_bad_ratio": ["0", "0.01", "1", "1.0"],
    "seed": ["0", "-3", "123456789012345678"],
    "holdout": ["0.05"],
    "max_document_bytes": ["16777216"],
}
BAD = {
    "overwrite": ["yes", "True", ""],
    "lowercase": ["no"],
    "keep_accents": ["1"],
    "holdout": ["1", "5%"],
    "shuffle": ["engine"],
    "num_shards": ["0", "-1", "1.5", "many", ""],
    "size": ["30k", "0"],
    "max_bad_ratio": ["1.5", "-0.1", "1%", ".5"],
    "short_seq_prob": ["2"],
    "seed": ["1.0", "x"],
    "format": ["xml", "AUTO"],
    "dedup": ["fuzzy"],
    "model": ["bpe", "charbpe"],
    "objective": ["mlm", "nsp,sop"],
    "dupe_factor": ["0", "1.5"],
    "masking": ["word"],
    "mask_prob": ["15%"],
}


class Parameter(BaseModel, extra="forbid", strict=True):
    """A parameter of a template, as the service describes it; of its fields, those that ours use."""

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")
    label: str = Field(min_length=1)
    helpText: str = Field(min_length=1)
    paramType: Literal["TEXT"]
    regexes: list[str] = []
    isOptional: bool = False


class Template(BaseModel, extra="forbid", strict=True):
    """A template's metadata."""

    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    parameters: list[Parameter] = Field(min_length=1)


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests import launch.py and template.py."""
    monkeypatch.syspath_prepend(str(FOLDER))


def template(step: str) -> dict[str, Any]:
    from template import template as template_of  # type: ignore[import-not-found]

    return template_of(step)


def accepts(parameter: dict[str, Any], value: str) -> bool:
    """Whether all patterns of a parameter fit a value, as the service asks before it starts a launcher."""
    return all(re.search(pattern, value) for pattern in parameter.get("regexes", []))


def job_parser(step: str) -> Any:
    """The parser of a step's own flags."""
    (subparsers,) = (action for action in parser()._actions if action.choices and step in action.choices)
    return subparsers.choices[step]  # type: ignore[index]


@pytest.mark.parametrize("step", STEPS)
def test_every_flag_of_the_step_is_a_parameter_and_required_where_the_flag_is(step: str) -> None:
    actions = {action.dest: action for action in job_parser(step)._actions}
    parameters = {parameter["name"]: parameter for parameter in template(step)["parameters"]}
    assert set(parameters) == set(actions) - NOT_OFFERED | OF_BEAM
    required = {name for name, action in actions.items() if action.required} | OF_BEAM
    assert {name for name, parameter in parameters.items() if not parameter.get("isOptional")} == required
    Template.model_validate(template(step))


def test_every_job_on_beam_has_a_template() -> None:
    jobs = {command.name for command in COMMANDS if "no_wait" in {a.dest for a in job_parser(command.name)._actions}}
    assert jobs == set(STEPS)


def test_the_program_prints_a_template(capsys: pytest.CaptureFixture[str]) -> None:
    from template import main  # type: ignore[import-not-found]

    assert main(["pairs"]) == 0
    assert json.loads(capsys.readouterr().out) == template("pairs")
    assert main([]) == 2 and "one of shard, vocab, pairs" in capsys.readouterr().err


@pytest.mark.parametrize("step", STEPS)
def test_patterns_take_good_values_and_refuse_bad_ones(step: str) -> None:
    tried = 0
    for parameter in template(step)["parameters"]:
        name = parameter["name"]
        for value in GOOD.get(name, []):
            assert accepts(parameter, value), (name, value)
        for value in BAD.get(name, []):
            assert not accepts(parameter, value), (name, value)
            tried += 1
    assert tried >= 10


@pytest.mark.parametrize("step", STEPS)
def test_patterns_take_the_defaults_of_their_flags(step: str) -> None:
    from template import OPTIONS  # type: ignore[import-not-found]

    parameters = {parameter["name"]: parameter for parameter in template(step)["parameters"]}
    for name, (_, default) in flags_of(OPTIONS[step]).items():
        is_off = isinstance(default, bool) or name == "static_masks"  # 0: no masks
        if isinstance(default, str | float | int) and not is_off:
            assert accepts(parameters[name], str(default)), name


def launch(*flags: str) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, FOLDER / "launch.py", *flags], cwd=REPOSITORY)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--output=gs://bucket/text"], "those of no step"),
        (["--input=gs://a/b", "--vocab=gs://b/vocab"], "those of shard and pairs"),
    ],
)
def test_the_launcher_needs_the_parameters_of_one_step(flags: list[str], named: str) -> None:
    done = launch(*flags)
    assert done.returncode == 2 and named in done.stderr, done.stderr
    assert "shard has `input` or `inputs`, vocab has `model` or `extend`" in done.stderr


def test_the_launcher_says_what_it_takes() -> None:
    done = launch("--help")
    assert done.returncode == 0 and "which template.py prints" in done.stdout


@pytest.mark.parametrize(
    ("step", "parameters"),
    [
        ("shard", ["input", "output"]),
        ("shard", ["inputs", "output"]),
        ("vocab", ["text", "output", "model", "size"]),
        ("vocab", ["counts", "output", "model", "size"]),
        ("vocab", ["text", "output", "extend", "add"]),
        ("pairs", ["text", "vocab", "output", "objective"]),
    ],
)
def test_the_step_follows_from_its_parameters(step: str, parameters: list[str]) -> None:
    from launch import command_of  # type: ignore[import-not-found]

    assert set(parameters) <= {parameter["name"] for parameter in template(step)["parameters"]}
    assert command_of([f"--{name}=x" for name in parameters])[0] == step


def test_switches_become_flags_without_a_value() -> None:
    from launch import command_of  # type: ignore[import-not-found]

    on = command_of(["--model=wordpiece", "--lowercase=true", "--overwrite=true"])
    off = command_of(["--model=wordpiece", "--lowercase=false", "--overwrite=false"])
    assert on == ["vocab", "--model=wordpiece", "--lowercase", "--overwrite", "--no_wait"]
    assert off == ["vocab", "--model=wordpiece", "--no_lowercase", "--no_wait"]


def test_the_launcher_submits_without_waiting() -> None:
    from launch import command_of  # type: ignore[import-not-found]

    flags = [
        "--vocab=gs://b/vocab",
        "--runner=DataflowRunner",
        "--project=p",
        "--region=us-central1",
        "--temp_location=gs://b/t",
    ]
    flags += ["--sdk_container_image=i", "--template_location=gs://b/job"]
    command = command_of(flags)
    assert command == ["pairs", *flags, "--no_wait"]
    check_flags(command[2:])
