"""An output folder belongs to tasks, files and encoders; what differs in one of them is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import UsageError
from tests.trainer.suite.conftest import subject_lines, write_lines, write_task
from trainer.suite.encoders import Encoder
from trainer.suite.identity import claim, identity_of
from trainer.suite.plan import Plan
from trainer.suite.probe.tasks import open_probe


def encoder_folder(folder: Path) -> Encoder:
    """An encoder of which only the configuration is there; identities ask for no more."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    return Encoder("first", str(folder))


def test_another_probe_is_refused(tmp_path: Path) -> None:
    """Other values, and other files under the same names."""
    write_task(tmp_path, "task", "sentence", subject_lines)
    encoder = encoder_folder(tmp_path / "encoder")
    output = tmp_path / "out"

    def claim_with(*changes: str) -> None:
        probe = open_probe(str(tmp_path / "task.toml"), str(tmp_path), changes)
        claim(output, identity_of(Plan(None, [encoder], "", output, 1, probe)))

    claim_with()
    claim_with()
    with pytest.raises(UsageError, match="holds results of another probe"):
        claim_with("training.max_length=16")

    write_lines(tmp_path / "task/train.jsonl", subject_lines(41, 1))
    with pytest.raises(UsageError, match="holds results of another probe"):
        claim_with()
