"""--filters: which rules a job applies, and with which thresholds.

--filters gopher,fineweb          sets of rules, as their papers have them
--filters rules.toml              sets, and single rules with other thresholds:

    sets = ["gopher", "c4"]

    [rules]
    min_words = 20                another threshold
    unfinished_lines = false      not this rule of the set
    max_short_lines = true        a rule of another set, with its paper's threshold
"""

from __future__ import annotations

import tomllib
from typing import Any, get_args

from pipeline.filters.rules import RULES, SetName
from schemas import storage
from schemas.errors import UsageError, nearest_name

Thresholds = dict[str, float | None]
"""The rules of a job by their names, in the order of RULES, with the threshold of each; None for one without."""

_SETS = get_args(SetName)
# Codes of languages that put no spaces between words, and no mark at the end of sentences.
_WITHOUT_SPACES = ("bo", "dz", "ja", "km", "lo", "my", "th", "zh")
_WITHOUT_MARKS = ("lo", "th")


def chosen_rules(given: str, language: str, sentence_rules: str = "") -> tuple[Thresholds, list[str]]:
    """Return the rules that `--filters` names, and the names of those in its sets that do not fit the language.

    language: its code. sentence_rules: the code of the language whose rules split its sentences, if it is another one.
    Rules that a file names itself apply to every language. Raises UsageError for an unknown set or rule, a threshold of
    the wrong type, or a file that cannot be read as TOML.
    """
    is_file = given.lower().endswith(".toml")
    names = list(filter(None, map(str.strip, given.lower().split(","))))
    sets, rules = _read(given) if is_file else (_sets(names, "--filters"), {})

    chosen: Thresholds = {}
    unfit: list[str] = []
    for name, rule in RULES.items():
        if name in rules:
            if rules[name] is not False:
                chosen[name] = rule.threshold if rules[name] is True else rules[name]
        elif rule.set in sets:
            if _fits(rule.needs, language, sentence_rules):
                chosen[name] = rule.threshold
            else:
                unfit.append(name)
    if not chosen:
        raise UsageError(f"--filters {given} leaves no rule for --language {language}. Leave it out.")
    return chosen, unfit


def _fits(needs: str, language: str, sentence_rules: str) -> bool:
    if needs == "English":
        return language == "en"
    without = {"spaces": _WITHOUT_SPACES, "marks": _WITHOUT_MARKS}.get(needs, ())
    return not {language, sentence_rules} & set(without)


def _sets(names: list[Any], where: str) -> list[str]:
    """Return names of sets, which `where` has. Raises UsageError for an unknown one."""
    for name in names:
        if name not in _SETS:
            hint = nearest_name(str(name), _SETS)
            raise UsageError(
                f"{where}: {name!r} is not a set of rules.{hint} Give some of {', '.join(_SETS)}, with commas between "
                "them, or a .toml file that names rules (docs/filters.md)."
            )
    return names


def _read(path: str) -> tuple[list[str], dict[str, Any]]:
    """Return the sets of a file, and the values of its [rules]."""
    shown = storage.printable(path)
    try:
        content = tomllib.loads(storage.read(path).decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{shown} is not TOML: {error}. docs/filters.md has an example.") from error

    sets = content.pop("sets", [])
    rules = content.pop("rules", {})
    if content or not isinstance(sets, list) or not isinstance(rules, dict):
        names = ", ".join(content) or "a value of another type"
        raise UsageError(f"{shown} has {names}. Expected: sets = [...], and a table [rules] of names and thresholds.")

    for name, value in rules.items():
        _check(shown, name, value)
    return _sets(sets, shown), rules


def _check(shown: str, name: str, value: Any) -> None:
    """Raise UsageError unless a rule exists and may have this value."""
    if name not in RULES:
        raise UsageError(f"{shown}: there is no rule {name!r}.{nearest_name(name, RULES)} docs/filters.md lists them.")
    if isinstance(value, bool):
        return
    usual = RULES[name].threshold
    if usual is None:
        raise UsageError(f"{shown}: {name} = {value!r}: this rule has no threshold. Give true or false.")
    most = 1 if usual < 1 else float("inf")
    if not isinstance(value, int | float) or not 0 <= value <= most or value == float("inf"):
        expected = "a share from 0 to 1" if most == 1 else "a number from 0 up"
        raise UsageError(f"{shown}: {name} = {value!r}: expected {expected}, or false for no such rule.")
