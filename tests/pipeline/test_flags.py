"""A flag is stated once, as a field: its name, default, help and check, and what the manifest records of it."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, dataclass

import pytest

from pipeline.cli import main
from pipeline.flags import (
    add_flags,
    fraction,
    given_flags,
    option,
    share,
    switch,
    switch_pair,
)
from pipeline.jobs.vocab_accents import with_case_of
from pipeline.options import PairsJob, VocabJob
from pipeline.shard.languages import find_language
from schemas.command_line import CommandParser, positive
from schemas.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Options:
    path: str = option(help="a path", recorded=False)
    color: str = option("red", help="a color", check=("red", "blue"))
    rows: int | None = option(None, help="rows (default: all)", check=positive)
    ratio: float = option(0.5, help="a share", check=share)
    quiet: bool = switch(help="say nothing")
    dry: bool = switch_pair(MISSING, help="dry", off_help="wet")


GROUPS = {"places": "path", "what is shown": "color rows ratio quiet dry"}


def parse(*arguments: str) -> dict[str, object]:
    parser = CommandParser("x")
    add_flags(parser, Options, GROUPS)
    return given_flags(Options, parser.parse_args(list(arguments)))


def test_a_flag_without_a_group_of_the_help_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match=r"differ in \['path'\]"):
        add_flags(CommandParser("x"), Options, {"what is shown": GROUPS["what is shown"]})


def test_only_flags_that_were_given_are_parsed() -> None:
    assert parse("--path", "p") == {"path": "p"}
    assert parse("--path", "p", "--color", "red", "--no_dry") == {"path": "p", "color": "red", "dry": False}
    assert parse("--path", "p", "--quiet", "--rows", "3") == {"path": "p", "quiet": True, "rows": 3}


@pytest.mark.parametrize("wrong", [("--rows", "0"), ("--ratio", "nan"), ("--ratio", "2"), ("--color", "green")])
def test_a_check_refuses_a_value(wrong: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=wrong[0]):
        parse("--path", "p", *wrong)


def test_a_parser_takes_what_python_adds_and_any_width(monkeypatch) -> None:
    """Python 3.14 adds `color` to the parsers of commands."""
    monkeypatch.setenv("COLUMNS", "2")
    assert "Some" in CommandParser("x", notes="Some words.", conflict_handler="error").format_help()


def test_help_adds_the_default_unless_the_text_explains_it() -> None:
    parser = CommandParser("x")
    add_flags(parser, Options, GROUPS)
    shown = " ".join(parser.format_help().split())
    assert "a color (default: red)" in shown and "rows (default: all)" in shown
    assert shown.count("(default") == 3


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


def test_an_option_that_is_missing_is_named(capsys) -> None:
    assert main(["vocab", "--text", "t", "--output", "o", "--model", "wordpiece"]) == 2
    assert "--size" in capsys.readouterr().err
