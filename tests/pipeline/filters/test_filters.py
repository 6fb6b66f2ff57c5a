"""`shard --filters`: which documents and lines the rules drop, and what the command prints about it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.filters.measures import Measured, NGrams
from pipeline.filters.rules import RULES, Rule, chosen_rules
from schemas.errors import ClozelineError, UsageError
from schemas.manifest import read_manifest
from tests.conftest import Command

WORDS = st.lists(st.sampled_from(["a", "bb", "ccc", "d", "ee"]), max_size=60)

# ---- Repeated n-grams, against loops over the words ----


@given(WORDS, st.integers(2, 10))
def test_the_top_ngram_is_that_of_a_plain_count(words: list[str], n: int) -> None:
    counts = Counter(" ".join(words[place : place + n]) for place in range(len(words) - n + 1))
    ngram, most = counts.most_common(1)[0] if counts else ("", 0)
    assert NGrams(words).top(n) == (len(ngram) * most if most > 1 else 0)


@given(WORDS, st.integers(2, 10))
def test_duplicate_ngrams_are_those_of_a_plain_walk(words: list[str], n: int) -> None:
    seen: set[tuple[str, ...]] = set()
    characters = place = 0
    while place + n <= len(words):
        ngram = tuple(words[place : place + n])
        if ngram in seen:
            characters += len("".join(ngram))
        place += n if ngram in seen else 1
        seen.add(ngram)
    assert NGrams(words).duplicated(n) == characters


# ---- Each rule, on both sides of its threshold ----

PROSE = "The mill stands at the end of the road that leads to the river and the old bridge."
LINES = [
    "The mill of the town was built by two brothers in the year of the flood.",
    "Its wheel turned for ninety years, until a factory upstream took all the water.",
    "Then came a baker with new ovens and with plans that his wife had drawn.",
    "They sold bread to every village between here and those hills.",
    "A war ended that, and many other things too.",
    "Nowadays you find a museum inside, open on Sundays from ten o'clock.",
    "Children may grind some corn themselves and take home what they made.",
]

JUST: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    # rule: (lines or sentences that keep it, those that do not). Each line is a paragraph.
    "max_line_word_length": (["a " + "x" * 1000], ["a " + "x" * 1001]),
    "unfinished_lines": (['"It ends."'], ["It ends..."]),  # more of them below
    "min_line_words": (["a b c"], ["a b"]),
    "javascript_lines": (["Java"], ["Enable JavaScript."]),
    "policy_lines": (["Cookies for all"], ["Our Privacy Policy"]),
    "lorem_ipsum": (["Lorem is a town."], ["Then Lorem Ipsum follows."]),
    "curly_brackets": (["f(x) = [x]"], ["int main() {"]),
    "min_words": (["word " * 50], ["word " * 49]),
    "max_words": (["word " * 100_000], ["word " * 100_001]),
    "min_mean_word_length": (["abc abc abcd ab"], ["abc abc abc ab"]),
    "max_mean_word_length": (["abcdefghij abcdefghij"], ["abcdefghij abcdefghijk"]),
    "max_hashes_per_word": (["# a b c d e f g h i"], ["# a b c d e f g h"]),
    "max_ellipses_per_word": (["a... b c d e f g h i j"], ["a... b\u2026 c d e f g h i j"]),
    "max_bullet_lines": (["- a"] * 9 + ["b"], ["- a", "\u2022 b"]),
    "max_ellipsis_lines": (["a..."] * 3 + ["b"] * 7, ["a..."] * 4 + ["b\u2026"]),
    "min_alphabetic_words": (["a b c d 1"], ["a b c 1"]),
    "min_stop_words": (["the end of it"], ["the the end"]),
    "max_duplicate_lines": ([*"abcdefg", "a", "b", "c"], [*"abcdef", "a", "b", "c"]),
    "max_duplicate_line_characters": (["a" * 20] * 2 + ["b" * 58], ["a" * 20] * 2 + ["b" * 57]),
    "max_duplicate_paragraphs": ([*"abcdefg", "a", "b", "c"], [*"abcdef", "a", "b", "c"]),
    "max_duplicate_paragraph_characters": (["a" * 20] * 2 + ["b" * 58], ["a" * 20] * 2 + ["b" * 57]),
    "max_top_2_gram": (LINES, ["so it was so it was so it was so it was"]),
    "max_top_3_gram": (LINES, ["so it was so it was so it was so it was"]),
    "max_top_4_gram": (LINES, ["so it was all, " * 3]),
    **{f"max_duplicate_{n}_grams": ([PROSE], [PROSE, PROSE]) for n in range(5, 11)},
    "min_punctuated_lines": ([*"abcdefg", "h."], [*"abcdefgh", "i."]),
    "max_short_lines": ([*"abcdef", "x" * 31, "y" * 31, "z" * 31], ["a" * 30, *"bcdef", "g", "x" * 31, "y" * 31]),
    "max_repeated_line_characters": (LINES, [*LINES, LINES[0]]),
    "max_line_ends_per_word": (["a b c d", "e f", "g h i j"], ["a", "b c"]),
    "min_sentences": (["S."] * 5, ["S."] * 4),
}


@pytest.mark.parametrize("name", JUST)
def test_a_rule_keeps_what_is_at_its_threshold_and_drops_what_is_beyond(name: str) -> None:
    rule = RULES[name]
    for lines, fails in zip(JUST[name], (False, True), strict=True):
        judged = {"line": lines[0], "text": Measured([[line] for line in lines]), "sentences": lines}[rule.judges]
        assert rule.fails(rule.measure(judged), rule.threshold) is fails


@pytest.mark.parametrize("end", [".", "?", "!", '."', ".\u201d", ".\u201c", "。", "؟", "।", " »"])
def test_a_line_that_ends_is_finished(end: str) -> None:
    rule = RULES["unfinished_lines"]
    assert not rule.fails(rule.measure("It ends" + end), None)
    assert rule.fails(rule.measure(f"It ends{end} not"), None)
    assert rule.fails(rule.measure("It ends\u2026"), None)


def test_words_of_amharic_end_at_its_divider() -> None:
    assert RULES["min_line_words"].measure("ሰው፡ሁሉ፡ነው።") == 3
    assert RULES["max_line_word_length"].measure("ሰው፡ሁሉ፡ነው።") == 3
    assert len(Measured([["ሰው፡ሁሉ፡ነው።"]]).words) == 3


def test_every_rule_is_tried() -> None:
    assert set(JUST) == set(RULES)


# ---- As a user runs it ----


def shard(command: Command, folder: Path, texts: list[str], *flags: object, language: str = "en"):
    source = folder / "corpus.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return command("shard", "--input", source, "--output", folder / "text", "--language", language, *flags)


def test_dropped_documents_are_in_the_ledger_and_removed_lines_are_counted(command: Command, tmp_path: Path) -> None:
    good = "\n\n".join(LINES)
    texts = [
        good,
        good + "\n\nHome | About | Contact\n\nThis page uses cookies to remember you.\n\nEnable JavaScript to read on.",
        good + "\n\nvoid main() { return; } is code that nearly nothing but a compiler reads.",
        "\n\n".join([*LINES, *LINES]),
        "Go home.\n\nThis is too short to stay.",
    ]
    done = shard(command, tmp_path, texts, "--filters", "c4,gopher")
    assert done.returncode == 0, done.stderr

    manifest = read_manifest(str(tmp_path / "text"), "text")
    assert {entry.reason: entry.count for entry in manifest.ledger} == {
        "c4 filter: curly_brackets": 1,
        "gopher filter: max_duplicate_paragraphs": 1,
        "gopher filter: min_words": 1,
    }
    assert manifest.statistics["cleaning"] == {
        "lines removed (javascript_lines)": 1,
        "lines removed (min_line_words)": 1,
        "lines removed (policy_lines)": 1,
        "lines removed (unfinished_lines)": 1,
    }
    # What C4 leaves of the second text is the first one.
    assert manifest.totals["sentences"] == 2 * len(LINES)
    assert manifest.options["filters"]["min_words"] == 50
    for told in ("1 x gopher filter: min_words", "lines removed (unfinished_lines) 1"):
        assert told in done.stdout + done.stderr


def test_removed_lines_are_no_duplicate_paragraphs(command: Command, tmp_path: Path) -> None:
    text = "\n\nHome menu\n\n".join(LINES)
    done = shard(command, tmp_path, [text], "--filters", "c4, gopher,")
    assert done.returncode == 0, done.stderr


def test_spaces_at_the_ends_of_lines_change_nothing_and_lost_documents_are_told_apart(command, tmp_path) -> None:
    texts = ["\n\n".join(LINES), " \n\n".join(LINES) + " ", "\t\r\n\r\n".join(LINES), "Menu\n\nHome", " \n"]
    done = shard(command, tmp_path, texts, "--filters", "c4,gopher,fineweb")
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(str(tmp_path / "text"), "text")
    assert manifest.totals["documents"] == 3
    ledger = {entry.reason: entry.count for entry in manifest.ledger}
    assert ledger == {"c4 filter: no line left": 1, "empty document": 1}


def test_a_file_changes_thresholds_and_another_threshold_is_another_job(command: Command, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('sets = ["gopher"]\n[rules]\nmin_words = 2\nmin_stop_words = false\nmax_short_lines = true\n')
    texts = ["Schools were closed yesterday because trees had fallen onto all roads.", "Short."]
    assert shard(command, tmp_path, texts, "--filters", rules).returncode == 0

    options = read_manifest(str(tmp_path / "text"), "text").options["filters"]
    assert (options["min_words"], options["max_short_lines"]) == (2, 0.67)
    assert "min_stop_words" not in options

    rules.write_text("[rules]\nmin_words = 1\n")
    again = shard(command, tmp_path, texts, "--filters", rules)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


def test_rules_about_spaces_and_english_words_are_left_out_of_other_languages(command: Command, tmp_path: Path) -> None:
    done = shard(command, tmp_path, ["今天天气很好。" * 10, "明天下雨。" * 8], "--filters", "gopher", language="zh")
    assert done.returncode == 0, done.stderr
    assert "do not fit Chinese" in done.stderr
    assert "min_words" in done.stderr
    assert read_manifest(str(tmp_path / "text"), "text").totals["documents"] == 2

    chosen, unfit = chosen_rules("gopher", "de")
    assert unfit == ["min_stop_words"]
    assert "min_words" in chosen


@pytest.mark.parametrize(
    "content, told",
    [
        ("gophre", "'gophre' is not a set of rules. Did you mean gopher?"),
        ('sets = ["c5"]', "'c5' is not a set of rules"),
        ("[rules]\nmin_word = 3", "there is no rule 'min_word'. Did you mean min_words?"),
        ('[rules]\nmin_words = "3"', "min_words = '3': expected a number from 0 up"),
        ("[rules]\nmin_words = -1", "min_words = -1: expected a number"),
        ("[rules]\nmax_bullet_lines = 90", "max_bullet_lines = 90: expected a share from 0 to 1"),
        ("[rules]\nlorem_ipsum = 2", "this rule has no threshold. Give true or false"),
        ("[rule]\nmin_words = 3", "has rule. Expected: sets"),
        ("[rules", "is not TOML"),
        ("[rules]\nmin_words = false", "leaves no rule"),
        ("nothing.toml", "nothing.toml"),
    ],
)
def test_a_mistake_is_one_line(content: str, told: str, tmp_path: Path) -> None:
    given = content
    if "\n" in content or "=" in content or "[" in content:
        path = tmp_path / "rules.toml"
        path.write_text(content)
        given = str(path)
    with pytest.raises(ClozelineError) as raised:
        chosen_rules(given, "en")
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_rule_of_no_published_set_is_turned_on_by_its_name_alone(command, tmp_path: Path, monkeypatch) -> None:
    capitals = Rule("own", "text", lambda text: text.share_of_words(sum(map(str.isupper, text.words))), 0.5)
    unordered = Rule("own", "line", lambda line: line.startswith("*"), edit=lambda line: line.replace("+", "*"))
    monkeypatch.setitem(RULES, "max_capitals", capitals)
    monkeypatch.setitem(RULES, "starred_lines", unordered)
    assert not {"max_capitals", "starred_lines"} & set(chosen_rules("c4,gopher,fineweb", "en")[0])
    with pytest.raises(UsageError, match="'own' is not a set"):
        chosen_rules("own", "en")

    rules = tmp_path / "rules.toml"
    rules.write_text("[rules]\nmax_capitals = true\nstarred_lines = true\n")
    texts = ["The mill is old.\n\n+ Home", "BUY NOW OR NEVER", "+ Menu\n\n* Home"]
    assert shard(command, tmp_path, texts, "--filters", rules).returncode == 0
    manifest = read_manifest(str(tmp_path / "text"), "text")
    ledger = {entry.reason: entry.count for entry in manifest.ledger}
    assert ledger == {"own filter: max_capitals": 1, "own filter: no line left": 1}
    assert manifest.statistics["cleaning"] == {"lines removed (starred_lines)": 3}
