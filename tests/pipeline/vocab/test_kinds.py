"""The two tables of the kinds of vocabularies."""

from typing import get_args

from pipeline.vocab.kinds import MAKERS
from schemas.vocabulary_kinds import VOCABULARY_KINDS, Model


def test_each_kind_is_in_both_tables() -> None:
    assert tuple(MAKERS) == tuple(VOCABULARY_KINDS) == get_args(Model)
