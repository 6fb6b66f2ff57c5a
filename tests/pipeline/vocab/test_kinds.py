"""The two tables of the kinds of vocabularies."""

from typing import Any, get_args

import pytest

from pipeline.vocab.kinds import MAKERS, maker_of
from schemas.vocabulary_kinds import VOCABULARY_KINDS, Model


def test_each_kind_is_in_both_tables() -> None:
    assert tuple(MAKERS) == tuple(VOCABULARY_KINDS) == get_args(Model)


def test_an_unknown_kind_is_no_other_one() -> None:
    unknown: Any = "wordlevel"
    with pytest.raises(
        ValueError, match=r"'wordlevel' is no kind of vocabulary. There are wordpiece, bytebpe, unigram"
    ):
        maker_of(unknown)
