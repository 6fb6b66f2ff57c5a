"""Flags of jobs: defaults that depend on other flags, values that are refused, and flags without effect."""

from __future__ import annotations

import argparse

import pytest

from pipeline.flags import fraction
from pipeline.jobs.vocab_accents import with_case_of
from pipeline.options import PairsJob, VocabJob
from pipeline.shard.languages import find_language
from schemas.command_line import CommandParser
from schemas.errors import UsageError


def test_a_parser_takes_what_python_adds_and_any_width(monkeypatch) -> None:
    """Python 3.14 adds `color` to the parsers of commands."""
    monkeypatch.setenv("COLUMNS", "2")
    assert "Some" in CommandParser("x", notes="Some words.", conflict_handler="error").format_help()


def test_a_vocabulary_ignores_case_and_accents_by_its_model_and_language() -> None:
    flags = {"text": "t", "output": "o", "size": 9}
    expected = {  # (lowercase, keep_accents) in English and in Hindi
        ("wordpiece", "albert"): ((True, False), (False, False)),
        ("bytebpe", "albert"): ((False, False), (False, False)),
        ("unigram", "albert"): ((True, False), (True, True)),
        ("unigram", "xlnet"): ((False, False), (False, True)),
    }
    for (model, family), values in expected.items():
        given = {"model": model} if family == "albert" else {"model": model, "special_tokens": family}
        for language, value in zip(("English", "hi"), values, strict=True):
            job = with_case_of(VocabJob.from_flags(flags | given), find_language(language))
            assert (job.lowercase, job.keep_accents) == value

    chosen = VocabJob.from_flags(flags | {"model": "wordpiece", "lowercase": True})
    assert with_case_of(chosen, find_language("hi")).lowercase is True


@pytest.mark.parametrize("text", ["0", "1", "-1", "1.5", "nan", "5%", "1e-400", ""])
def test_a_fraction_is_neither_nothing_nor_all(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"above 0 and below 1, such as 0\.05"):
        fraction(text)
    assert fraction("0.5") == 0.5


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"objective": "nsp", "mask_prob": 0.15}, "--mask_prob applies only to the masks that --static_masks K stores"),
        ({"objective": "full_sentences", "short_seq_prob": 0.1}, "--short_seq_prob changes nothing"),
    ],
)
def test_a_flag_without_effect_is_refused_even_with_its_default(flags: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PairsJob.from_flags({"text": "t", "vocab": "v", "output": "o"} | flags)
