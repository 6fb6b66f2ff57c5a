"""The README is true: its map is the tree on the disk, its commands run, its words for files and exit codes hold."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.trainer.ranks import free_port

README = Path("README.md").read_text()
CHANGES = {
    "run.max_steps": 6,
    "run.log_every": 1,
    "checkpoint.every": 3,
    "schedule.warmup_steps": 2,
    "model.hidden_size": 32,
    "model.intermediate_size": 64,
}
SHRUNK = [part for name, value in CHANGES.items() for part in ("--set", f"{name}={value}")]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def mapped_files() -> set[str]:
    """The paths in the README's map, folders by their indentation."""
    text = README.split("## The map\n\n```\n")[1].split("```")[0]
    found, folders = set(), [""]
    for line in text.splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        if depth > 6:  # more of the line above
            continue
        folders = folders[: depth + 1]
        if name.endswith("/"):
            folders.append(folders[-1] + name)
        else:
            found.add(folders[-1] + name)
    return found


def test_the_map_is_the_tree() -> None:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    python = {
        name
        for name in listed
        if name.startswith(("schemas/", "pipeline/", "trainer/", "deploy/"))
        and name.endswith(".py")
        and not name.endswith("__init__.py")
    }
    mapped = mapped_files()
    assert {name for name in mapped if name.endswith(".py")} == python
    assert {name for name in mapped if "/" not in name} >= {"pyproject.toml", "constraints.txt", "Makefile", "LICENSE"}
    recipes = README.split("recipes/ ")[1].split("\ndeploy/")[0]
    assert set(re.findall(r"[\w.]+\.toml", recipes)) == {path.name for path in Path("trainer/recipes").iterdir()}


def test_the_verbs_are_the_makefiles() -> None:
    makefile = Path("Makefile").read_text()
    for verb in re.findall(r"^make (\w+)", blocks("sh")[0], re.MULTILINE):
        assert f"\n{verb}: setup" in makefile


def test_the_commands_run_in_order(run, corpus: Path, tmp_path: Path) -> None:
    """Every command of the README on a small corpus, its folders moved into a temporary one, its runs shrunk."""
    (tmp_path / "corpus").mkdir()
    shutil.copy(corpus, tmp_path / "corpus" / "a.jsonl")
    lines = "".join(blocks("sh")[1:]).replace("out/", f"{tmp_path}/out/").replace("corpus/", f"{tmp_path}/corpus/")
    commands = [shlex.split(line) for line in lines.splitlines() if not line.startswith("source ")]
    assert len(commands) == 9
    for command in commands:
        if "--size" in command:
            command[command.index("--size") + 1] = "160"
        trains = command[0] in ("deepspeed", "torchrun") or command[:3] == ["python", "-m", "trainer"]
        if command[0] in ("deepspeed", "torchrun"):
            command[1:1] = ["--master_port", str(free_port())]  # beside other tests, one of which takes the default
        done = run(*command, *(SHRUNK if trains else []))
        assert done.returncode == 0, (command, done.stderr)
    script = blocks("python")[0].replace("out/", f"{tmp_path}/out/")
    assert run("python", "-c", script).returncode == 0


@pytest.mark.parametrize("code", ["2 usage", "3 bad data", "4 bad checkpoint", "5 storage"])
def test_exit_codes_are_the_errors(code: str) -> None:
    from schemas import errors

    assert code in README
    kinds = (errors.UsageError, errors.DataError, errors.CheckpointError, errors.StorageError)
    codes = {error.exit_code for error in kinds}
    assert int(code[0]) in codes
