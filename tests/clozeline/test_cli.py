"""The command `clozeline`: its commands, its help, and that each starts the right program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clozeline import __version__
from clozeline.cli import COMMANDS, main
from pipeline.inspection import inspect, verify
from schemas.errors import DataError
from tests.conftest import Run
from tests.forked import Command


def clozeline(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `clozeline` in a new process, for what the imports of a command and the start of Python decide."""
    command = [sys.executable, "-m", "clozeline", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_help_lists_every_command_and_every_exit_code() -> None:
    done = clozeline("--help")
    assert done.returncode == 0 and done.stderr == ""
    width = max(len(name) for name in COMMANDS)
    for name, command in COMMANDS.items():
        assert f"  {name:<{width}} {command.help}\n" in done.stdout
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


def test_an_unknown_command_is_a_usage_error_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian", "--config", "tiny"]) == 2
    assert (
        capsys.readouterr().err == "clozeline: there is no command trian. Did you mean train? See `clozeline --help`.\n"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_own_help(name: str) -> None:
    done = clozeline(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: clozeline {name} ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["shard", "--inptu", "x"], "clozeline: "),
        (["pairs"], "clozeline: "),
        (
            ["train", "--confg", "tiny"],
            "clozeline: the following arguments are required: --config. Unknown flag --confg. Did you mean --config?",
        ),
        (
            ["train", "--config", "tiny", "--sett", "a=b"],
            "clozeline: unrecognized arguments: --sett a=b. Unknown flag --sett. Did you mean --set?",
        ),
        (["train", "--config", "bert-base"], "clozeline: --config bert-base does not exist. Did you mean bert_base?"),
        (["train", "--config", "tiny", "--set", "run.sead=1"], "clozeline: --set run.sead=1: unknown key run.sead."),
        (["train", "--config", "tiny", "--config", "a"], "clozeline: --config is given twice, as tiny and as a."),
        (["pairs", "--text", "a", "--text=b"], "clozeline: --text is given twice, as a and as b. Give it once."),
        (
            ["vocab", "--text", "a", "b", "c", "--output", "x", "--model", "wordpiece", "--size", "9"],
            "clozeline: unexpected arguments: b c. If they come from a name with spaces or a pattern, quote it",
        ),
        (["export", "run"], "clozeline: the following arguments are required: --output"),
    ],
    ids=[
        "unknown flag",
        "missing flag",
        "misspelled flag",
        "misspelled other flag",
        "recipe",
        "key",
        "repeated",
        "repeated in two forms",
        "unquoted",
        "export",
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(run: Run, words: list[str], message: str) -> None:
    done = run("clozeline", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(message) and done.stderr.count("\n") == 1, done.stderr


def test_a_key_that_is_set_again_is_replaced_with_a_line(run: Run) -> None:
    words = ["train", "--config", "tiny", "--describe", "--set", "model.vocab_size=99", "--set", "model.hidden_size=64"]
    done = run("clozeline", *words, "--set", "model.hidden_size = 32")
    assert done.returncode == 0
    assert done.stderr == "clozeline: --set model.hidden_size = 32 replaces model.hidden_size=64.\n"


def test_recipes_lists_and_prints_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert "bert_base 110M MLM 15%, NSP nsp, 128 tokens 1 H100, 11 hours" in [" ".join(line.split()) for line in listed]

    assert main(["recipes", "bert_base"]) == 0
    assert capsys.readouterr().out.startswith("# BERT-base")

    assert main(["recipes", "bert_bse"]) == 2
    assert "Did you mean bert_base?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["recipes"], ["train", "--help"], ["train", "--config", "tiny", "--describe", "--set", "model.vocab_size=99"]],
)
@pytest.mark.parametrize(
    ("stdout", "code", "told"),
    [("/dev/full", 5, "clozeline: The output cannot be written: No space left on device."), ("pipe", 0, "")],
)
def test_a_stdout_that_takes_nothing(words: list[str], stdout: str, code: int, told: str) -> None:
    """A closed pipe ends a command silently, a full disk is an error."""
    if stdout == "pipe":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(stdout, os.O_WRONLY)
    command = Command(["clozeline", *words], stdout=writer, stderr=subprocess.PIPE)
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
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", START.format("print('\u2581')")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "\\u2581\n"


def test_ctrl_c_while_modules_are_imported_is_one_line() -> None:
    """Some packages go on after a KeyboardInterrupt, others end in a traceback."""
    source = START.format("os.kill(os.getpid(), signal.SIGINT)")
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "clozeline: interrupted.\n")


@pytest.mark.parametrize("command", ["inspect", "verify"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        (None, "does not exist"),
        ("recipe.toml", "is the folder of a run"),
        ("state.json", "is a checkpoint. `clozeline export"),
        ("config.json", "is a model in the Hugging Face format"),
        ("notes.txt", "is not a finished folder: it holds no manifest.json"),
    ],
)
def test_what_the_pipeline_did_not_write_is_named(command: str, name: str | None, told: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    if name is not None:
        folder.mkdir()
        (folder / name).write_text("{}")
    with pytest.raises(DataError, match=re.escape(f"{folder} {told}")):
        list(inspect(str(folder), 1) if command == "inspect" else verify(str(folder)))


@pytest.mark.parametrize("path", ["notes.txt", "manifest.json"])
def test_a_file_is_no_folder(path: str, tmp_path: Path) -> None:
    (tmp_path / path).write_text("{}")
    with pytest.raises(DataError, match=f"{path} is not a finished folder.*Give a folder"):
        list(verify(str(tmp_path / path)))


def test_help_is_a_command_too_and_resuming_needs_no_flag(run) -> None:
    """In processes of their own: a command of the trainer ends with its signals ignored."""
    assert run("clozeline", "help", "train").stdout.startswith("usage: clozeline train ")
    for command in (["train", "--config", "tiny"], ["shard", "--input", "a", "--output", "b"]):
        resumed = run("clozeline", *command, "--resume")
        assert resumed.returncode == 2
        assert "--resume. It is not needed: the same command continues what it began." in resumed.stderr


@pytest.mark.parametrize("command", [["recipes"], ["shard", "--input", "a", "--output", "b"]])
def test_a_deleted_working_directory_is_no_traceback(command: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    started = f"cd {folder} && rmdir {folder} && exec {sys.executable} -m clozeline {' '.join(command)}"
    done = subprocess.run(["bash", "-c", started], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if command == ["recipes"] else 2), done.stderr
