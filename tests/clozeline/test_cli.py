"""The command `clozeline`: its commands, its help, and that each starts the right program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from clozeline import __version__
from clozeline.cli import COMMANDS, PIPELINE, main
from clozeline.completion import parsers
from pipeline.verification import verify
from schemas.command_line import NOT_SHOWN
from schemas.errors import DataError
from tests.forked import Command
from tests.processes import ran
from trainer.cli import parser as trainer_parser


def clozeline(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `clozeline` in a new process, for what the imports of a command and the start of Python decide."""
    return ran([sys.executable, "-m", "clozeline", *words])


def test_help_lists_every_command_and_every_exit_code() -> None:
    done = clozeline("--help")
    assert done.returncode == 0 and done.stderr == ""
    for name, command in COMMANDS.items():
        assert f"\n  {name:<11} {command.help}\n" in " ".join(done.stdout.split("\n              "))
    for code in (0, 1, 2, 3, 4, 5, 75, 130):
        assert f"\n  {code:<4} " in done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"clozeline {__version__}\n"


def test_no_command_is_a_usage_error_with_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: clozeline COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_own_help_of_one_kind(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Usage, one sentence, groups with defaults, two examples and exit codes, as wide as the terminal."""
    monkeypatch.setenv("COLUMNS", "60")
    program = import_module(COMMANDS[name].program.partition(":")[0])
    with pytest.raises(SystemExit) as ended:
        words = [name, "--help"] if COMMANDS[name].program == PIPELINE else ["--help"]
        program.parser("clozeline" if COMMANDS[name].program == PIPELINE else f"clozeline {name}").parse_args(words)
    assert ended.value.code == 0

    usage, sentence, *parts = capsys.readouterr().out.split("\n\n")
    assert usage.startswith(f"usage: clozeline {name} ") and "[options]" in usage
    assert sentence.endswith(".") and sentence[0].isupper()
    titles = [part.split("\n")[0] for part in parts]
    assert titles.index("other:") < titles.index("examples:") == len(parts) - 2
    assert parts[-1].startswith("exit codes: 0 ")
    examples = parts[-2].splitlines()[1:]
    assert len(examples) == 2 and all(line.split()[0] in ("clozeline", "torchrun", "eval") for line in examples)
    groups = parts[: titles.index("other:") + 1]
    assert all(len(line) <= 60 for group in groups for line in group.splitlines())


def test_help_shows_every_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A default that a parser has, or the options of a job, is in the help of its flag as it is."""
    monkeypatch.setenv("COLUMNS", "999")
    compared = 0
    for name, flags in parsers().items():
        lines = re.split(r"\n  (?=-)", flags.format_help().partition("\nexamples:")[0])
        assert not re.search(r"\((default: )?(None|True|False)\)|\) \(default", " ".join(lines)), name
        for action in flags._actions:
            default = getattr(action, "shown_default", action.default)
            if isinstance(default, bool) or not isinstance(default, str | int | float) or default in NOT_SHOWN:
                continue
            (shown,) = (line for line in lines if re.match(rf"{action.option_strings[-1]}\b", line))
            expected = f"{default:g}" if isinstance(default, float) else default
            if action.dest == "static_masks":
                expected = "none; the trainer masks"
            assert f"(default: {expected})" in shown, (name, shown)
            compared += 1
    assert compared > 40


def test_a_key_that_is_set_again_is_replaced_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", "tiny", "--set", "model.hidden_size=64", "--set", "model.hidden_size = 32"]
    assert trainer_parser().parse_args(words).set == ["model.hidden_size = 32"]
    assert capsys.readouterr().err == "clozeline: --set model.hidden_size = 32 replaces model.hidden_size=64.\n"


def test_recipes_lists_and_prints_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert "bert_base 110M MLM 15%, NSP nsp, 128 tokens 1 H100, 11 hours" in [" ".join(line.split()) for line in listed]

    assert main(["recipes", "bert_base"]) == 0
    assert capsys.readouterr().out.startswith("# BERT-base")


@pytest.mark.parametrize(
    "words",
    [
        ["recipes"],
        ["train", "--help"],
        ["train", "--config", "tiny", "--describe", "--set", "model.vocab_size=99"],
        ["inspect", "{text}", "--rows", "100000"],
    ],
)
@pytest.mark.parametrize(
    ("stdout", "code", "told"),
    [("/dev/full", 5, "clozeline: The output cannot be written: No space left on device."), ("pipe", 0, "")],
)
def test_a_stdout_that_takes_nothing(words: list[str], stdout: str, code: int, told: str, text: Path) -> None:
    """A closed pipe, as of `head`, ends a command silently, a full disk is an error."""
    if stdout == "pipe":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(stdout, os.O_WRONLY)
    command = Command(["clozeline", *(word.format(text=text) for word in words)], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    _, stderr = command.communicate(timeout=120)
    assert command.returncode == code
    assert stderr.startswith(told) and stderr.count("\n") == bool(told), stderr


START = """
import os, signal
from clozeline.installation import run_explained

def run():
    try:
        {}
    except KeyboardInterrupt:
        pass
    return 0

run_explained(run, "trainer")
"""


def test_letters_that_stdout_lacks_are_escaped() -> None:
    printing = [sys.executable, "-c", START.format("print('\u2581')")]
    assert ran(printing, env=os.environ | {"PYTHONIOENCODING": "ascii"}).stdout == "\\u2581\n"


def test_ctrl_c_while_modules_are_imported_is_one_line() -> None:
    """Some packages go on after a KeyboardInterrupt, others end in a traceback."""
    source = START.format("os.kill(os.getpid(), signal.SIGINT)")
    done = ran([sys.executable, "-c", source])
    assert (done.returncode, done.stderr) == (130, "clozeline: interrupted.\n")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (None, "does not exist"),
        ("state.json manifest.json", "is a checkpoint, which"),
        ("config.json", "is a model in the Hugging Face format, which"),
        ("notes.txt", "is not a finished folder: it holds no manifest.json"),
    ],
)
def test_verify_names_what_the_pipeline_did_not_write(name: str | None, told: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    if name is not None:
        folder.mkdir()
        for part in name.split():
            (folder / part).write_text("{}")
    with pytest.raises(DataError, match=re.escape(f"{folder} {told}")):
        list(verify(str(folder)))


@pytest.mark.parametrize("path", ["notes.txt", "manifest.json"])
def test_a_file_is_no_folder(path: str, tmp_path: Path) -> None:
    (tmp_path / path).write_text("{}")
    with pytest.raises(DataError, match=f"{path} is not a finished folder.*Give a folder"):
        list(verify(str(tmp_path / path)))


def test_help_is_a_command_too(run) -> None:
    assert run("clozeline", "help", "train").stdout.startswith("usage: clozeline train ")


@pytest.mark.parametrize("command", [["recipes"], ["shard", "--input", "/a", "--output", "/b"]])
def test_a_deleted_working_directory_is_one_line(command: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    started = f"cd {folder} && rmdir {folder} && exec {sys.executable} -m clozeline {' '.join(command)}"
    done = ran(["bash", "-c", started])
    assert (done.returncode, done.stderr) == (2, "clozeline: the working directory was deleted. Leave it.\n")
