"""The flags of `clozeline finetune`."""

from __future__ import annotations

import pytest

from schemas.errors import UsageError
from trainer.finetune.cli import parser

WORDS = ["folder", "--task", "task.toml", "--output", "out"]


def test_the_flag_that_deepspeed_adds_is_known() -> None:
    assert parser("clozeline finetune").parse_args(["--local_rank=1", *WORDS]).folder == "folder"


@pytest.mark.parametrize("flags", [["--seeds", "0"], ["--seeds", "two"], ["--first_seed", "-1"], ["--seed", "1"]])
def test_wrong_flags_are_one_line(flags: list[str]) -> None:
    with pytest.raises(UsageError):
        parser("clozeline finetune").parse_args([*WORDS, *flags])
