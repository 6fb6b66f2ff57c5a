"""Only results that this command asked for are in the table, and a stop never ends in a traceback."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trainer.finetune.fingerprint import fingerprint_of
from trainer.finetune.results import RESULTS_FILE
from trainer.suite.encoders import Encoder
from trainer.suite.links import links_of
from trainer.suite.outcomes import JobStates, count_without_score, outcome
from trainer.suite.plan import IDENTITY_FILE, Plan, is_finetuned
from trainer.suite.report import report
from trainer.suite.suite_file import open_suite
from trainer.suite.table import error_lines, markdown

ALL = {"first/subjects", "first/tags", "first/verbs", "first/order"}


@pytest.fixture
def plan(suite_file: Path, tmp_path: Path) -> Plan:
    """A plan of two seeds whose folders hold results of three."""
    suite = open_suite(str(suite_file), [], [])
    plan = Plan(suite, [Encoder("first", "folder")], str(suite_file.parent), tmp_path / "out", 2)
    [encoder] = plan.encoders
    for task in suite.tasks:
        scores = [{"dev": {task.metric: value}} for value in (0.25, 0.75, 1.0)]
        seeds = [{"seed": number, "scores": of_seed, "seconds": 1800.0} for number, of_seed in enumerate(scores)]
        # The order of the seeds is not that of the file.
        write(
            plan.place(encoder, task.entry.name) / RESULTS_FILE,
            {"seeds": seeds[::-1], "baseline": {"dev": {task.metric: 0.25}}},
        )
    order = {"accuracy": 0.6, "seconds": 36.0, "phenomena": {"word order": 0.6}}
    write(plan.place(encoder, "order") / RESULTS_FILE, order)
    return plan


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_exactly_the_seeds_that_were_asked_for_count(plan: Plan) -> None:
    found = outcome(plan, JobStates(ALL, {}), [])
    assert found["scores"]["first"]["tags"]["values"] == [0.25, 0.75]
    assert found["scores"]["first"]["tags"]["hours"] == 1.0
    assert found["scores"]["first"]["tags"]["baseline"] == 0.25
    assert found["averages"]["first"]["values"] == pytest.approx([0.25, 0.75])
    assert count_without_score(found) == 0


def test_results_of_an_earlier_start_are_not_shown_as_new(plan: Plan) -> None:
    """As after a start with --seeds 3 and a stop of one with --seeds 5: folders hold fewer seeds than are asked for."""
    [encoder] = plan.encoders
    more = replace(plan, seeds=5)
    place = more.place(encoder, "subjects") / RESULTS_FILE
    seeds = [{"seed": seed, "scores": {"dev": {"accuracy": 0.5}}, "seconds": 1.0} for seed in range(5)]
    write(place, {"seeds": seeds, "baseline": {}})

    found = outcome(more, JobStates({"first/subjects"}, {"first/tags": "broken"}), [])
    assert len(found["scores"]["first"]["subjects"]["values"]) == 5
    assert found["averages"]["first"] is None
    assert found["details"]["first"] == {}
    assert error_lines(found) == ["first/tags: broken", "first/verbs: not done", "first/order: not done"]
    assert "word order" not in markdown(found)


def test_a_set_without_labels_is_a_line_and_not_a_traceback(plan: Plan) -> None:
    assert plan.suite is not None
    subjects, tags, verbs = plan.suite.tasks
    with_hidden = replace(tags, entry=tags.entry.model_copy(update={"sets": ("dev", "hidden")}))
    suite = replace(plan.suite, tasks=(subjects, with_hidden, verbs))

    found = outcome(replace(plan, suite=suite), JobStates(ALL, {}), [])
    assert found["scores"]["first"]["tags"]["values"] == []
    assert error_lines(found) == [
        "first/tags: the set hidden has no labels, so it has no score. Remove it from the task's sets."
    ]
    assert count_without_score(found) == 1
    assert "| tags | chunk_f1 | - |" in markdown(found)


def test_a_folder_with_more_seeds_is_done(tmp_path: Path) -> None:
    encoder = tmp_path / "encoder"
    write(encoder / "config.json", {})
    output = tmp_path / "out"
    write(output / RESULTS_FILE, {"seeds": [{"seed": seed} for seed in (2, 0, 1)]})
    assert not is_finetuned(output, str(encoder), 2)  # of no known encoder

    write(output / IDENTITY_FILE, {"encoder": fingerprint_of(str(encoder))})
    assert is_finetuned(output, str(encoder), 2)
    assert is_finetuned(output, str(encoder), 3)
    assert not is_finetuned(output, str(encoder), 4)


def test_the_report_links_to_the_files_that_exist(plan: Plan) -> None:
    for name in ("folders/first/subjects/report.html", "logs/first.subjects.log", "logs/first.order.log"):
        write(plan.output / name, "")
    page = report(outcome(plan, JobStates(ALL, {}), []), links_of(plan))
    subjects, tags, order = (
        next(line for line in page.splitlines() if f"<tr><td>{name}</td><td>first</td>" in line)
        for name in ("subjects", "tags", "order")
    )
    log = '<a href="logs/first.{}.log">log</a></td></tr>'
    assert f'<a href="folders/first/subjects/report.html">report</a>, {log.format("subjects")}' in subjects
    assert log.format("order") in order
    assert "href" not in tags
