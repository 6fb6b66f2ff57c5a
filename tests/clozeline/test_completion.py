"""`clozeline completion`: what the TAB key offers in a real bash, and what other shells are told."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from itertools import chain, pairwise
from pathlib import Path

import pytest

from clozeline.cli import COMMANDS
from clozeline.completion import parsers, script
from trainer.config.load import recipe_names

TRY = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _shtab_clozeline 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "bash"
    path.write_text(script("bash"))
    return path


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("", {*COMMANDS, "help"}),
        ("tr", {"train"}),
        ("train --des", {"--describe"}),
        ("train --config bert_l", {name for name in recipe_names() if name.startswith("bert_l")}),
        ("train --config my_", {"my_text", "my_recipe.toml"}),
        ("shard --input a.txt --format j", {"jsonl", "json"}),
        ("pairs --objective ", {"nsp", "sop", "full_sentences", "doc_sentences"}),
        ("vocab --text my", {"my_text"}),
        ("inspect my", {"my_text", "my_recipe.toml"}),
        ("help fine", {"finetune"}),
    ],
)
def test_tab(typed: str, offered: set[str], bash: Path, tmp_path: Path) -> None:
    (tmp_path / "my_text").mkdir()
    (tmp_path / "my_recipe.toml").touch()
    words = ["bash", "-c", TRY, "-", str(bash), "clozeline", *typed.split(" ")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=True)
    assert set(done.stdout.split()) == offered


def flags_in(shell: str, text: str, command: str) -> set[str]:
    """The flags of a command in a script for zsh or fish, whose lines have to be sound words of a shell."""
    if shell == "fish":
        lines = [shlex.split(line) for line in text.splitlines() if f"_shtab_clozeline_using {command}'" in line]
        pairs = [pair for line in lines for pair in pairwise(line)]
        dashes = {"-s": "-", "-l": "--"}
        return {dashes[kind] + name for kind, name in pairs if kind in dashes}

    words = shlex.split(text.partition(f"\n_shtab_clozeline_{command}_options=(\n")[2].partition("\n)\n")[0])
    return {flag for word in words for flag in re.findall(r"(?<![\w-])--?\w+(?=[\[,}])", word.partition("[")[0] + "[")}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_every_flag(shell: str, tmp_path: Path) -> None:
    text = script(shell)
    for command, flags in parsers().items():
        shown = [action.option_strings for action in flags._actions if action.help != argparse.SUPPRESS]
        assert flags_in(shell, text, command) == set(chain(*shown)), command
    assert all(word in text for word in (*COMMANDS, *recipe_names(), "full_sentences"))
    (path := tmp_path / "script").write_text(text)
    if shutil.which(shell):
        subprocess.run([shell, "-n", path], timeout=20, check=True)
