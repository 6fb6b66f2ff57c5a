"""`clozeline completion`: what the TAB key offers in a real bash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clozeline.cli import COMMANDS
from clozeline.completion import SHELLS, script
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
        ("shard --input a.txt --format j", {"jsonl"}),
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


def test_every_shell_has_commands_flags_and_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        text = script(shell)
        assert all(word in text for word in ("finetune", "max_shard_gigabytes", "megatron_345m", "full_sentences"))
