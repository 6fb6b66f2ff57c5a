"""The Flex Templates: their parameters are flags of the step, their patterns fit, and their launcher does not wait.

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
from pydantic import BaseModel, Field, ValidationError

from pipeline.cli import parser
from pipeline.runtime.launch import check_flags

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "deploy/dataflow"
STEPS = ("shard", "vocab", "pairs")
OF_BEAM = {"temp_location", "sdk_container_image"}

GOOD = {
    "input": ["gs://corpus/*.jsonl.zst", "s3://my.corpus/a b/x.txt".replace(" ", ""), "gs://abc/a.txt,gs://abc/b/*.gz"],
    "output": ["gs://bucket/text", "s3://bucket/a/b/", "gs://my-bucket.example.com/x_1"],
    "text": ["gs://bucket/text"],
    "vocab": ["gs://bucket/vocab"],
    "temp_location": ["gs://bucket/tmp", "gs://bucket/tmp/"],
    "sdk_container_image": ["us-docker.pkg.dev/p/images/clozeline:0.1.0", "host:5000/a/b@sha256:" + "0" * 64],
    "num_shards": ["1", "100000"],
    "max_bad_ratio": ["0", "0.01", "1", "1.0"],
    "seed": ["0", "-3", "123456789012345678"],
    "language": ["en", "Swiss German"],
    "text_key": ["text", "body.text"],
}
BAD = {
    "step": ["", "shard ", "Shard", "train"],
    "input": ["/data/x.jsonl", "gs://", "gs://bucket", "gs://corpus/a, gs://corpus/b", "hdfs://a/b", "gs://corpus/a,"],
    "output": ["gs://bucket", "out", "gs://Bucket/x", "gs://bucket/a*", "gs://bucket/a b", "file:///x", "gs:///x"],
    "text": ["text"],
    "vocab": ["gs://bucket/a,gs://bucket/b"],
    "temp_location": ["s3://bucket/tmp", "gs://bucket", "/tmp"],
    "sdk_container_image": ["clozeline", "us-docker.pkg.dev/p/images/clozeline", "https://host/a:1"],
    "num_shards": ["0", "-1", "1.5", "many", ""],
    "size": ["30k", "0"],
    "max_bad_ratio": ["1.5", "-0.1", "1%", ".5"],
    "short_seq_prob": ["2"],
    "seed": ["1.0", "x"],
    "format": ["json", "AUTO"],
    "dedup": ["fuzzy"],
    "model": ["bpe", "unigram"],
    "objective": ["mlm", "nsp,sop"],
    "language": ["e", "en;rm"],
    "text_key": ["a b", "a,b"],
}


class Parameter(BaseModel, extra="forbid", strict=True):
    """A parameter of a template, as the service describes it; of its fields, those that ours use."""

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")
    label: str = Field(min_length=1)
    helpText: str = Field(min_length=1)
    paramType: Literal["TEXT"]
    regexes: list[str] = Field(min_length=1)
    isOptional: bool = False


class Template(BaseModel, extra="forbid", strict=True):
    """A template's metadata."""

    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    parameters: list[Parameter] = Field(min_length=1)


def template(step: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{step}.json").read_text())


def accepts(parameter: dict[str, Any], value: str) -> bool:
    """Whether all patterns of a parameter fit a value, as the service asks before it starts a launcher."""
    return all(re.search(pattern, value) for pattern in parameter["regexes"])


def job_parser(step: str) -> Any:
    """The parser of a step's own flags."""
    (subparsers,) = (action for action in parser()._actions if action.choices and step in action.choices)
    return subparsers.choices[step]  # type: ignore[index]


@pytest.mark.parametrize("step", STEPS)
def test_parameters_are_flags_of_the_step_and_required_where_the_flag_is(step: str) -> None:
    actions = {action.dest: action for action in job_parser(step)._actions}
    parameters = {parameter["name"]: parameter for parameter in template(step)["parameters"]}
    assert set(parameters) - {"step"} <= set(actions) | OF_BEAM
    required = {name for name, action in actions.items() if action.required} | OF_BEAM | {"step"}
    if step == "vocab":
        required |= {"text"}  # a template runs one job, so there are no --counts
    assert {name for name, parameter in parameters.items() if not parameter.get("isOptional")} == required
    Template.model_validate(template(step))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('"helpText"', '"helptext"', "helptext"),
        ('"regexes"', '"regexs"', "regexs"),
        ('"isOptional"', '"optional"', "optional"),
        ('"isOptional": true', '"isOptional": "true"', "isOptional"),
        ('"TEXT"', '"STRING"', "paramType"),
        ('"parameters"', '"params"', "params"),
        ('"name": "seed"', '"name": "--seed"', "name"),
    ],
)
def test_a_broken_template_is_refused(old: str, new: str, named: str) -> None:
    text = (FOLDER / "shard.json").read_text()
    assert old in text
    with pytest.raises(ValidationError, match=named):
        Template.model_validate_json(text.replace(old, new))


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
    assert accepts(template(step)["parameters"][0], step)


@pytest.mark.parametrize("step", STEPS)
def test_patterns_of_words_are_the_choices_of_the_flag(step: str) -> None:
    actions = {action.dest: action for action in job_parser(step)._actions}
    for parameter in template(step)["parameters"]:
        choices = getattr(actions.get(parameter["name"]), "choices", None)
        if choices:
            assert parameter["regexes"] == [f"^({'|'.join(choices)})$"]


def launch(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "launch.py"), *flags]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)


def test_the_launcher_needs_a_step() -> None:
    done = launch("--output=gs://bucket/text")
    assert done.returncode == 1 and "`step` must be one of shard, vocab, pairs" in done.stderr


def test_the_launcher_submits_without_waiting(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    from launch import command_of  # type: ignore[import-not-found]

    flags = ["--step=pairs", "--runner=DataflowRunner", "--project=p", "--region=r", "--temp_location=gs://b/t"]
    flags += ["--sdk_container_image=i", "--template_location=gs://b/job"]
    command = command_of(flags)
    assert command == ["pairs", *flags[1:], "--no_wait"]
    check_flags(command[1:])
