"""How the tests' own ranks answer."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.ranks import exit_code
from tests.trainer.warm_rank import ANSWER


def rank_that_printed(*lines: str) -> Any:
    return SimpleNamespace(stdout=iter(lines))


def test_an_answer_is_found_among_what_libraries_print() -> None:
    rank = rank_that_printed("0\n", "[INFO] Setting ds_accelerator to cpu\n", f"{ANSWER}75\n", f"{ANSWER}0\n")
    assert exit_code(rank) == 75
    assert exit_code(rank) == 0


def test_a_rank_without_an_answer_has_ended() -> None:
    with pytest.raises(AssertionError, match="a rank has ended"):
        exit_code(rank_that_printed("[INFO] Setting ds_accelerator to cpu\n"))
