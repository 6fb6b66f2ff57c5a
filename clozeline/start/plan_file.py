"""OUTPUT/clozeline.toml: a plan as a file that people read and change, and the commands that it makes.

A section is a step, and its keys are the flags of the step's command; of [train], all but `config` and `processes` are
keys of the recipe, with or without quotes. `start` itself gives the flags that connect the steps, so they cannot stand
there.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from clozeline.start.decide import Sections, Setting
from pipeline.flags import Flag, Switch, flags_of
from pipeline.options import PairsJob, ShardJob, VocabJob
from schemas import storage
from schemas.errors import UsageError, nearest_name
from schemas.host_limits import usable_gpus
from schemas.terminal import one_line

NAME = "clozeline.toml"

SECTIONS = ("start", "shard", "vocab", "pairs", "train", "export")
CONNECTIONS = {
    "start": (),
    "shard": ("output",),
    "vocab": ("text", "output"),
    "pairs": ("text", "vocab", "output"),
    "train": ("data.pairs", "run.output", "evaluation.pairs"),
    "export": ("output",),
}
"""What connects the steps."""

HEADER = """\
# What `clozeline start` does, step by step. Change any value, or add any flag of a step's command, and repeat
#     {command}
# It repeats the steps that a change concerns, and continues those that were interrupted.
"""

HAVE_OPPOSITES = [name for name, (flag, _) in flags_of(VocabJob).items() if isinstance(flag, Switch) and flag.off_help]
"""Switches with a flag for each state: --lowercase and --no_lowercase. Only `vocab` has any."""

TAKE_SEVERAL = [
    name
    for job in (ShardJob, VocabJob, PairsJob)
    for name, (flag, _) in flags_of(job).items()
    if isinstance(flag, Flag) and flag.many
]
"""Flags with several words, as of a list. Others take one, in which commas stand between."""

Values = dict[str, dict[str, Any]]
"""What the file says: the values of each section."""


OFFERED = {
    "shard": '# corpus_license = "cc-by-4.0"\n# corpus_url = "https://..."\n',
    "export": '# license = "cc-by-4.0"  # of the model, for its card\n',
}
"""The last lines of sections: what only the user can know."""


def to_text(sections: Sections, folder: str, command: str) -> str:
    """Return the file. folder: what was looked at. command: the one that made it."""
    parts = [HEADER.format(command=one_line(command)), f"[start]\nfolder = {_value(folder)}\n"]
    for name, settings in sections.items():
        parts.append("\n".join([f"[{name}]", *_lines(settings)]) + "\n" + OFFERED.get(name, ""))
    return "\n".join(parts)


def with_settings(text: str, sections: Sections, path: str) -> str:
    """Return a plan's text with new lines for these settings, and without one for a value of None. All else stays.

    Raises UsageError if the text has such a line in another form than the program's.
    """
    given = [(name, key, setting) for name, settings in sections.items() for key, setting in settings.items()]
    lines = text.split("\n")
    for name, key, setting in given:
        _replace(lines, name, key, _lines({key: setting}) if setting.value is not None else [])

    changed = "\n".join(lines)
    with suppress(UsageError):
        plan = parse(changed, path)
        if all(plan[name].get(key) == setting.value for name, key, setting in given):
            return changed
    keys = ", ".join(f"[{name}] {_key(key)}" for name, key, _ in given)
    raise UsageError(f"{storage.printable(path)} was rewritten, so flags change nothing in it. Change there: {keys}.")


def _replace(lines: list[str], section: str, key: str, new: list[str]) -> None:
    """Replace the line of a key by new ones, which otherwise become the last of the section."""
    start = lines.index(f"[{section}]") + 1 if f"[{section}]" in lines else len(lines)
    end = next((at for at in range(start, len(lines)) if lines[at].startswith("[")), len(lines))
    old = [at for at in range(start, end) if lines[at].startswith((f"{_key(key)} = ", f"{key} = "))]
    at = old[0] if old else end - (not lines[end - 1])  # before the blank line
    lines[at : at + len(old)] = new


def _lines(settings: dict[str, Setting]) -> list[str]:
    assigned = [f"{_key(key)} = {_value(setting.value)}" for key, setting in settings.items()]
    width = min(44, max(map(len, assigned), default=0))
    return [
        f"{line:<{width}}  # {setting.why}" if setting.why else line
        for line, setting in zip(assigned, settings.values(), strict=True)
    ]


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    # JSON's strings, numbers and booleans are TOML's, but for the letters that it escapes as pairs.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_text(path: str) -> str:
    """Read the file. Raises UsageError if it is not UTF-8, and StorageError."""
    try:
        text = storage.read(path).decode("utf-8-sig")  # editors on Windows may begin files with a byte order mark
        return text.replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise _not_toml(path, error) from error


def _not_toml(path: str, error: ValueError) -> UsageError:
    return UsageError(
        f"{storage.printable(path)} is not TOML: {error}. Repair that line, or remove the file for a new one."
    )


def parse(text: str, path: str) -> Values:
    """Return the values of the file's text. Raises UsageError if it is not TOML, or has what no step takes."""
    shown = storage.printable(path)
    try:
        plan = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(path, error) from error

    for name, section in plan.items():
        if name not in SECTIONS:
            hint = nearest_name(name, SECTIONS)
            raise UsageError(f"{shown}: there is no section {name!r}.{hint} Sections: {', '.join(SECTIONS)}.")
        if not isinstance(section, dict):
            raise UsageError(f"{shown}: {name} = {section!r} is not a section. Write [{name}], and its values below.")
        if name == "train":
            plan[name] = _flat(section, f"{shown}, [{name}]")
        _check_section(f"{shown}, [{name}]", name, plan[name])

    missing = [name for name in ("shard", "vocab", "pairs", "train") if name not in plan]
    if missing:
        raise UsageError(f"{shown} has no section [{missing[0]}]. Remove the file, and `start` writes a new one.")
    return {name: plan.get(name, {}) for name in SECTIONS}


def _flat(section: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the section with keys such as run.max_hours, which TOML takes for tables if they have no quotes."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        inner = {key: value}
        if isinstance(value, dict) and value:
            inner = {f"{key}.{name}": one for name, one in _flat(value, place).items()}
        for name, one in inner.items():
            if name in flat:
                raise UsageError(f"{place}: {name} is there twice. Remove one of the lines.")
            flat[name] = one
    return flat


def _check_section(place: str, name: str, section: dict[str, Any]) -> None:
    for key, value in section.items():
        if key in CONNECTIONS[name]:
            raise UsageError(f"{place}: {key} connects the steps, and `clozeline start` sets it. Remove that line.")
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(one, str | int | float | bool) for one in values):
            raise UsageError(f"{place}: {key} = {value!r} must be a number, a string, true, false, or a list of these.")
    if name == "train":
        processes = section.get("processes", 1)
        if not isinstance(section.get("config"), str):
            raise UsageError(f"{place}: config is missing: the name of a recipe, or its file.")
        if type(processes) is not int or processes < 1:
            raise UsageError(f"{place}: processes = {processes!r} is not a number from 1 up.")


def holds_out(plan: Values) -> bool:
    """Return whether a share of the documents is held out."""
    return plan["shard"].get("holdout", False) is not False


@dataclass(frozen=True)
class Step:
    """A command of the plan.

    folder: what it writes, below the output. needs: the steps whose results it reads.
    words: the command. is_finished_by: the file in its folder that is there once it is finished.
    """

    name: str
    folder: str
    needs: tuple[str, ...]
    words: tuple[str, ...]
    is_finished_by: str = "manifest.json"

    @property
    def section(self) -> str:
        """The section that its flags stand in."""
        return "pairs" if self.name == "held-out pairs" else self.name

    @property
    def is_job(self) -> bool:
        """Whether the pipeline makes it."""
        return self.is_finished_by == "manifest.json"


def steps_of(plan: Values, output: str) -> list[Step]:
    """Return the commands of a plan, in order."""
    at = {name: os.path.join(output, name) for name in ("text", "vocab", "pairs", "held_out", "run", "hf")}
    pairs = ["--vocab", at["vocab"], *_flags(plan["pairs"])]
    has_held_out = holds_out(plan)
    steps = [
        _job("shard", "text", (), ["--output", at["text"], *_flags(plan["shard"])]),
        _job("vocab", "vocab", ("shard",), ["--text", at["text"], "--output", at["vocab"], *_flags(plan["vocab"])]),
        _job("pairs", "pairs", ("shard", "vocab"), ["--text", at["text"], "--output", at["pairs"], *pairs]),
    ]
    if has_held_out:
        text = f"{at['text']}_heldout"
        words = ("clozeline", "pairs", "--text", text, "--output", at["held_out"], *pairs)
        steps.append(Step("held-out pairs", "held_out", ("shard", "vocab"), words))

    needs = ("pairs", "held-out pairs") if has_held_out else ("pairs",)
    connections = {"data.pairs": at["pairs"], "run.output": at["run"]}
    if has_held_out:
        connections["evaluation.pairs"] = at["held_out"]
    train = tuple(_training(plan["train"], connections))
    export = ("clozeline", "export", at["run"], "--output", at["hf"], *_flags(plan["export"]))
    return [
        *steps,
        Step("train", "run", needs, train, "recipe.toml"),
        Step("export", "hf", ("pairs", "train"), export, "config.json"),
    ]


def _job(name: str, folder: str, needs: tuple[str, ...], words: list[str]) -> Step:
    return Step(name, folder, needs, ("clozeline", name, *words))


def _training(section: dict[str, Any], connections: dict[str, str]) -> list[str]:
    settings = {key: value for key, value in section.items() if key not in ("config", "processes")} | connections
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={_set(value)}")]
    processes = section.get("processes", 1)
    start = ["clozeline", "train"]
    if processes > 1:
        start = ["deepspeed", *_which_gpus(processes), "--module", "trainer"]
    return [*start, "--config", section["config"], *sets]


def _which_gpus(processes: int) -> list[str]:
    """Return flags of DeepSpeed's launcher, for which --num_gpus means the first ones, even if others are visible."""
    visible = usable_gpus()[:processes] if "CUDA_VISIBLE_DEVICES" in os.environ else []
    if len(visible) < processes:
        return ["--num_gpus", str(processes)]
    if not all(map(str.isdecimal, visible)):
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES is {os.environ['CUDA_VISIBLE_DEVICES']}, and DeepSpeed's launcher knows GPUs by "
            "their numbers alone. Give these, as in CUDA_VISIBLE_DEVICES=0,1."
        )
    return ["--include", f"localhost:{','.join(visible)}"]


def _set(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _flags(section: dict[str, Any]) -> list[str]:
    """Return flags as words of a command line. Example: `{"size": 8000, "lowercase": True}` -> four words less one."""
    words: list[str] = []
    for key, value in section.items():
        if value is False:
            words += [f"--no_{key}"] if key in HAVE_OPPOSITES else []
            continue
        words.append(f"--{key}")
        if isinstance(value, list):
            texts = [str(one) for one in value]
            words += texts if key in TAKE_SEVERAL else [",".join(texts)]
        elif value is not True:
            words.append(_number(value) if isinstance(value, float) else str(value))
    return words


def _number(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 1e15 else repr(value)
