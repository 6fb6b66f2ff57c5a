"""A folder that holds no encoder is refused with what it is instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import UsageError
from trainer.finetune import cli
from trainer.finetune.encoder_folder import check_encoder_folder
from trainer.finetune.model import read_config
from trainer.suite.encoders import encoders_of


def refusal(folder: Path) -> str:
    with pytest.raises(UsageError) as refused:
        check_encoder_folder(str(folder))
    return str(refused.value)


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nothing").startswith(f"{tmp_path / 'nothing'} does not exist. Give the folder")


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path} has no config.json, so it is not an encoder in the Hugging Face format.")
    assert "run" not in message.removeprefix(str(tmp_path))


def test_the_folder_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").touch()
    assert refusal(tmp_path).endswith("It is the folder of a run: `clozeline export` writes its encoder.")

    with pytest.raises(UsageError, match="writes its encoder, and --checkpoints all scores all its checkpoints"):
        encoders_of([str(tmp_path)], random_weights=False)
    with pytest.raises(UsageError, match="It is the folder of a run"):
        read_config(str(tmp_path))


def test_the_command_line_checks_the_folder_before_the_task(tmp_path: Path) -> None:
    words = [str(tmp_path / "nothing"), "--task", "no_task.toml", "--output", str(tmp_path / "out")]
    with pytest.raises(UsageError, match="nothing does not exist"):
        cli._read_request(cli.parser("clozeline finetune").parse_args(words))
