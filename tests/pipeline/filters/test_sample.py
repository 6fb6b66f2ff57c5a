"""`shard --sample`: the page about what each rule removes, against plain loops over documents and rules."""

from __future__ import annotations

import gzip
import html
import json
import re
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.filters.measures import Measured
from pipeline.filters.rules import DEFINITIONS, PAPERS, RULES, SETS, chosen_rules
from pipeline.jobs.filter_trial import value_histogram
from pipeline.jobs.shard import reading_options
from pipeline.jobs.shard_options import resolved
from pipeline.options import ShardJob
from pipeline.readers import sampling
from pipeline.readers.inputs import FileRange, plan_splits
from pipeline.readers.listing import matching_files
from pipeline.readers.record import Record, RecordOptions
from pipeline.readers.sampling import sample
from schemas.manifest import read_manifest
from tests.conftest import Command
from tests.pipeline.filters.test_filters import LINES
from tests.pipeline.test_card import Tags

HOSTILE = "The <script>alert('1')</script> of the town & the mill. "


def texts() -> list[str]:
    """Texts of all lengths; some have menus, a hostile line, code, no end or the same line again."""
    made = []
    for number in range(90):
        lines = [*LINES[: 1 + number % 7], f"Number {number} has {'many ' * (number % 11)}words and the end of it."]
        lines += ["Home menu", f"See also {number}"][: number % 3]
        lines += (
            [HOSTILE * 3] * (number % 5 == 0) + ["int main() { }."] * (number % 13 == 0) + [LINES[0]] * (number % 4)
        )
        made.append("\n\n".join(lines))
    return [*made, "Menu\n\nHome", " \n", "x" * 700 + "."]


def write(folder: Path, number: int = 3) -> list[Path]:
    """Write the texts into files of JSON lines. The first has a record that is no JSON."""
    paths = [folder / f"{name}.jsonl" for name in "abc"[:number]]
    lines = [json.dumps({"text": text, "source": f"<s{i % 2}>"}) + "\n" for i, text in enumerate(texts())]
    for place, path in enumerate(paths):
        path.write_text("".join(lines[place::number]) + "{broken\n" * (place == 0), encoding="utf-8")
    return paths


def try_filters(command: Command, folder: Path, *flags: object, filters: str = "c4,gopher,fineweb", count: int = 1000):
    return command("shard", "--filters", filters, "--sample", count, "--output", folder / "page.html", *flags)


def cells_of(page: str) -> dict[str, list[str]]:
    """Return the other cells of each row of the page's table by its name."""
    rows = re.findall(r"<tr[^>]*><td>(.*?)</tr>", page)
    cells = [[html.unescape(re.sub("<[^>]*>", "", cell)) for cell in row.split("</td>")[:-1]] for row in rows]
    return {name: numbers for name, *numbers in cells}


def section_of(page: str, rule: str) -> str:
    start = page.index(f'<section id="{rule}">')
    return page[start : page.index("</section>", start)]


@pytest.mark.parametrize("flags", [(), ("--language", "auto", "--mask_private", "--decontaminate", "evaluation.txt")])
def test_the_numbers_are_those_of_the_job(flags, command: Command, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evaluation.txt").write_text("Number 70 has many many many many words and the end of it.\n")
    inputs = write(tmp_path)
    done = try_filters(command, tmp_path, "--input", *inputs, *flags)
    assert done.returncode == 0, done.stderr
    cells = cells_of((tmp_path / "page.html").read_text())

    filters = ("--filters", "c4,gopher,fineweb", "--max_bad_ratio", 1, "--output", tmp_path / "text")
    assert command("shard", "--input", *inputs, *filters, *flags).returncode == 0
    manifest = read_manifest(str(tmp_path / "text"), "text")
    ledger: Counter[str] = Counter()
    for entry in manifest.ledger:
        ledger[entry.reason] += entry.count
    assert len(ledger) > 5 and (not flags or ledger["13 words as in evaluation.txt"])

    for reason, count in ledger.items():
        rule = reason.rpartition(" filter: ")[2]
        assert cells[rule if rule in RULES else reason][0] == str(count), reason
    for change, count in manifest.statistics["cleaning"].items():
        if change.startswith("lines removed"):
            assert cells[change[15:-1]][0] == f"{count} lines"
    assert cells["kept"][0] == str(manifest.totals["documents"])
    assert cells["read"][0] == "94"
    removed = sum(
        int(row[0])
        for name, row in cells.items()
        if name not in ("read", "kept", "kept, touched by no rule") and "lines" not in row[0]
    )
    assert removed + int(cells["kept"][0]) == 94
    # All but the shares of "read", and of "kept, touched by no rule", which is a part of "kept".
    shares = [float(row[-1].rstrip("%")) for row in cells.values()]
    assert sum(shares[1:-1]) == pytest.approx(100, abs=0.3)
    assert "page.html" in done.stdout and re.search(r"min_words +\d+ +\d+ +[\d.]+% +[\d.]+%", done.stdout)


def test_a_plain_loop_finds_the_same_failures_and_the_nearest_examples(command: Command, tmp_path: Path) -> None:
    inputs = write(tmp_path, number=1)
    rules = tmp_path / "rules.toml"
    names = ["min_words", "max_mean_word_length", "max_duplicate_lines", "max_short_lines", "min_stop_words"]
    lines = [f"{name} = true\n" for name in [*names, "curly_brackets"]]
    # No text reaches the last threshold, which is greater than any float.
    rules.write_text(f"[rules]\n{''.join(lines)}max_words = {10**400}\n")
    done = try_filters(command, tmp_path, "--input", *inputs, filters=str(rules))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()

    documents = [[[line.strip()] for line in text.split("\n\n") if line.strip()] for text in texts()]
    documents = [blocks for blocks in documents if blocks]
    dropped: dict[int, str] = {}
    for name, threshold in chosen_rules(str(rules), "en")[0].items():
        rule = RULES[name]
        values = [rule.measure(Measured(blocks)) for blocks in documents]
        failed = [i for i, value in enumerate(values) if rule.fails(value, threshold)]
        removed = [i for i in failed if i not in dropped]
        dropped |= {i: name for i in removed}
        assert cells_of(page)[name][:2] == [str(len(removed)), str(len(failed))]

        kept = [i for i in range(len(values)) if i not in failed]
        expected: list[str] = []
        for numbers in (removed, kept):
            nearest = sorted(numbers, key=lambda i: abs(values[i] - (threshold or 0)))
            excerpts = dict.fromkeys("\n".join(line for (line,) in documents[i])[:600] for i in nearest)
            expected += list(excerpts)[:5]
        shown = re.findall(r'class="excerpt" dir="auto">(.*?)(?: …)?</p>', section_of(page, name), re.DOTALL)
        assert [html.unescape(text) for text in shown] == expected


def test_the_page_is_whole_safe_and_needs_nothing_else(command: Command, tmp_path: Path) -> None:
    assert try_filters(command, tmp_path, "--input", *write(tmp_path)).returncode == 0
    page = (tmp_path / "page.html").read_text()
    tags = Tags(page)
    assert tags.open == [] and not tags.seen & {"script", "link", "img", "iframe", "object", "base"}
    assert not re.search(r"https?:|//\w|@import|url\(|\bsrc=", page)
    assert "&lt;script&gt;alert(&#39;1&#39;)" in page and "&lt;s1&gt;, byte " in page
    assert "prefers-color-scheme: dark" in page and "width=device-width" in page and "viewBox" not in page

    headings = re.findall(r'<section id="(\w+)">', page)
    assert headings == list(chosen_rules("c4,gopher,fineweb", "en")[0])
    section = section_of(page, "min_words")
    assert PAPERS["gopher"] in section and "words of a document: <b>at least 50</b>" in section
    assert section.count('class="threshold"') == 1 and 'class="fails"' in section


def test_the_order_and_the_division_of_inputs_change_nothing(command: Command, tmp_path: Path) -> None:
    a, b, c = write(tmp_path)
    pages = []
    for inputs in ((a, b, c), (c, a, b), (f"{tmp_path}/*.jsonl",)):
        done = try_filters(command, tmp_path, "--overwrite", "--input", *inputs, count=20)
        assert done.returncode == 0, done.stderr
        pages.append((tmp_path / "page.html").read_bytes())
    assert pages[0] == pages[1] == pages[2]
    assert b"20 documents" in pages[0] and b"A sample, evenly taken" in pages[0]


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.txt.gz"])
@pytest.mark.parametrize("count", [1, 7, 64, 90, 1000])
def test_a_sample_has_its_size_and_no_record_twice(name: str, count: int, tmp_path: Path) -> None:
    numbers = [f"Document {i} {'w ' * (i % 50)}" for i in range(300)]
    lines = [json.dumps({"text": text}) for text in numbers] if "jsonl" in name else [f"{text}\n" for text in numbers]
    data = "\n".join(lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    (tmp_path / "b.txt").write_text("")
    (tmp_path / "c.txt").write_text("Document c\n\nDocument d\n")

    job = resolved(ShardJob(input=[], output="")).job
    splits = plan_splits(matching_files(f"{tmp_path}/*"), "auto")
    sampled = sample(splits, count, reading_options(job, "", has_languages=False))
    found = [record.text for record, _ in sampled if isinstance(record, Record)]
    assert len(found) == len(set(found)) == min(count, 302)
    if name == "a.jsonl" and count == 64:  # from all parts of the file
        assert len({int(text.split()[1]) // 30 for text in found if text.split()[1].isdigit()}) == 10


def test_a_file_that_is_one_document_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "book.txt").write_text("The river is long.\n\n" * 9000)
    read: list[FileRange] = []
    read_records = sampling.read_records
    monkeypatch.setattr(sampling, "read_records", lambda *given: read.append(given[0]) or read_records(*given))
    (found,) = sample(plan_splits(matching_files(str(tmp_path)), "text"), 5, RecordOptions("text", "file"))
    assert isinstance(found[0], Record) and len(read) == 1


def test_members_of_archives_are_in_the_sample(command: Command, tmp_path: Path) -> None:
    plain = write(tmp_path)
    assert try_filters(command, tmp_path, "--input", *plain).returncode == 0
    numbers = cells_of((tmp_path / "page.html").read_text())

    folder = tmp_path / "archives"
    folder.mkdir()
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for path in plain:
            archive.write(path, path.name)
        archive.writestr("picture.png", b"\x89PNG\r\n\x1a\n" + bytes(100))

    done = try_filters(command, tmp_path, "--input", folder, "--overwrite")
    assert done.returncode == 0, done.stderr
    assert cells_of((tmp_path / "page.html").read_text()) == numbers
    assert "an image" in done.stdout


VALUES = st.one_of(st.integers(0, 200_000).map(float), st.floats(0, 50, allow_nan=False))


@pytest.mark.parametrize(
    "name", ["min_words", "max_words", "max_short_lines", "min_alphabetic_words", "curly_brackets"]
)
@given(st.lists(VALUES, min_size=1), st.one_of(st.none(), st.floats(0, 1), st.integers(0, 300)))
def test_no_bar_is_on_both_sides_of_the_threshold(name: str, values: list[float], other: float | None) -> None:
    rule = RULES[name]
    threshold = rule.threshold if other is None or rule.threshold is None else other
    drawn = value_histogram(Counter(values), rule, threshold)
    failed = sum(rule.fails(value, threshold) for value in values)
    assert sum(bar.drawn.count for bar in drawn.bars if bar.fails) == failed
    assert sum(bar.drawn.count for bar in drawn.bars) == len(values)
    for bar in drawn.bars:
        is_left = bar.drawn.x + bar.drawn.width <= drawn.threshold_x + 1e-6
        assert is_left == (bar.fails == rule.is_least)
        assert bar.drawn.x >= 0 and bar.drawn.x + bar.drawn.width <= 100
    assert 0 <= drawn.threshold_x <= 100 and len(drawn.bars) <= 50


def test_the_page_about_filters_has_every_rule_with_its_set_threshold_and_definition() -> None:
    page = Path("docs/filters.md").read_text().replace("`", "")
    for name, rule in RULES.items():
        threshold = "" if rule.threshold is None else f" {rule.threshold}"
        assert f"\n| {name} |{threshold} | {rule.set} | {DEFINITIONS[name]} |\n" in page
    assert set(DEFINITIONS) == set(RULES) and set(PAPERS) == set(SETS)


@pytest.mark.parametrize(
    "flags, told",
    [
        (("--sample", 9, "--output", "p.html"), "--sample tries the rules of --filters, which is missing"),
        (("--filters", "c4", "--sample", 0, "--output", "p.html"), "'0' is not a whole number above 0"),
        (("--filters", "c4", "--sample", 9, "--output", "old.html"), "--output old.html exists. Give another name, or"),
        (("--filters", "c4", "--sample", 9, "--output", "text"), "Give a name that ends in .html"),
        (("--filters", "c4", "--sample", 9, "--output", "d.html", "--overwrite"), "d.html is a folder"),
        (("--filters", "c4", "--sample", 9, "--output", "in.html", "--overwrite"), "in.html is a file of --input"),
        (("--filters", "c4", "--sample", 9, "--output", "p.html", "--dry_run"), "Leave out --dry_run, or --sample"),
        (("--filters", "c4", "--sample", 9, "--output", "p.html", "--runner=X"), "Leave out --runner, or --sample"),
    ],
)
def test_a_mistake_is_one_line(command: Command, flags, told: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.html").write_text("old")
    Path("in.html").write_text("A text.")
    Path("d.html").mkdir()
    done = command("shard", "--input", "in.html", "--format", "text", *flags)
    assert done.returncode == 2 and told in done.stderr and done.stderr.count("\n") == 1
    assert Path("in.html").read_text() == "A text." and Path("old.html").read_text() == "old"
    assert not Path("p.html").exists()
