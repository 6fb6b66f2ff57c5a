"""`clozeline report`: one page of several runs at any time, wherever they are, and one line for what is no run."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from schemas import storage
from schemas.errors import StorageError
from tests.trainer.metrics.test_run_page import Balanced
from trainer import report
from trainer.metrics.log import NAMES

START = {
    "time": 1.7e9,
    "command": "clozeline train --config mine --set data.pairs=/home/ada/my/pairs",
    "ranks": 2,
    "machine": "H100",
}
START |= {"parameters": 1_444_416, "pass_tokens": 4_000, "versions": {"torch": "2.13.0"}}


def run_folder(folder: Path, lr: float, steps: int) -> Path:
    """A run of 8 steps that has taken some of them, evaluated after every second one."""
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(
        f"[run]\noutput = '{folder}'\nmax_steps = 8\nseed = 0\n[optimizer]\nlr = {lr}\n[data]\npairs = 'pairs'\n"
        "[evaluation]\npairs = 'held_out'\n"
    )
    (folder / "starts.jsonl").write_text(json.dumps(START | {"step": 0, "seconds": 0.0, "folder": str(folder.parent)}))
    (folder / "metrics.jsonl").write_text("")
    train(folder, 1, steps)
    return folder


def train(folder: Path, first: int, last: int) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        for step in range(first, last + 1):
            line = dict.fromkeys(NAMES, 1.0) | {"step": step, "mlm_loss": 5 / step, "mfu": None, "tokens": 1000 * step}
            file.write(json.dumps(line | {"seconds": 60.0 * step}) + "\n")
            if step % 2 == 0:
                evaluated = {"eval_mlm_loss": 6 / step, "eval_mlm_accuracy": 0.5, "eval_unigram_loss": 7.0}
                file.write(json.dumps({"step": step, "seconds": 60.0 * step} | evaluated) + "\n")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_three_runs_on_one_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of them have the same name, one is at a URL and in its fifth step; a data card is where training began."""
    run_folder(here / "a/run", 0.001, 8)
    run_folder(here / "b/run", 0.004, 8)
    (here / "a/pairs").mkdir()
    (here / "a/pairs/card.html").touch()
    with (here / "a/run/metrics.jsonl").open("a") as file:
        file.write("\0\0\n")
    remote = run_folder(here / "away/run", 0.004, 5)
    for path in remote.iterdir():
        storage.publish(f"memory://report/c/{path.name}", path.read_bytes())

    assert report.main(["a/run", "b/run/", "memory://report/c"]) == 0
    said = capsys.readouterr()
    assert said.out == "report.html: the report of 3 runs is written.\n"
    assert said.err == "clozeline: a/run/metrics.jsonl: skipped 1 line without metrics.\n"
    page = (here / "report.html").read_text()
    texts = Balanced(page.replace('<svg class="swatch', "<svg ")).texts
    assert [texts.count(name) > 2 for name in ("a/run", "b/run", "report/c")] == [True] * 3
    assert "optimizer.lr" in texts and "0.001" in texts
    assert not {"run.seed", "run.output", "run.max_steps", "data.pairs"} & set(texts)

    row = texts[texts.index("held-out loss after step 4, which all have") :]
    assert [text for text in row if text][1:4] == ["1.5000"] * 3
    assert {"8 of 8", "5 of 8", "2", "1.25", "1.44M"} <= set(texts)
    assert {"Masked LM loss", "Masked LM loss, over hours", "Held-out loss, over hours"} <= set(texts)
    assert page.count('href="a/pairs/card.html"') == 1 and "refresh" not in page
    assert "2 ranks, H100" in texts and "clozeline train --config mine --set data.pairs=my/pairs" in texts


def test_the_best_is_marked_where_runs_compare_and_what_charts_leave_out_is_said_once(here: Path) -> None:
    for name, speed in (("a", 1.0), ("b", 2.0)):
        folder = run_folder(here / name, 0.001, 40)
        path = folder / "metrics.jsonl"
        path.write_text(path.read_text().replace('"tokens_per_second": 1.0', f'"tokens_per_second": {speed}'))
    assert report.main(["a", "b"]) == 0
    page = (here / "report.html").read_text()
    assert page.count('<td class="good">') == 1
    assert page.count("first steps lie above") >= 1 and page.count("<figure>") > 2

    recipe = here / "b/recipe.toml"
    recipe.write_text(recipe.read_text().replace("held_out", "others"))
    assert report.main(["a", "b"]) == 0
    page = (here / "report.html").read_text()
    assert "held-out losses do not compare" in page and '<td class="good">' not in page


def test_the_page_follows_a_run_until_ctrl_c(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "REFRESH", 0.02)
    (here / "op").mkdir()
    (here / "op/clozeline.toml").touch()
    folder = here / "op/run"
    made = run_folder(here / "made", 0.001, 0)
    (made / "metrics.jsonl").unlink()  # the training is still loading torch
    seen = []
    modified = storage.modified
    answers = iter([True, False, False])

    def answer(url: str) -> float | None:
        if next(answers, True):
            return modified(url)
        raise StorageError("the store is busy.")

    monkeypatch.setattr(storage, "modified", answer)

    def look(text: str) -> None:
        page = here / "report.html"
        for _ in range(500):
            if page.exists() and text in page.read_text():
                break
            time.sleep(0.02)
        seen.append(page.read_text())

    def other_process() -> None:
        time.sleep(0.1)
        made.rename(folder)
        time.sleep(0.1)
        train(folder, 1, 3)
        look("3 of 8")
        train(folder, 4, 4)
        look("4 of 8")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=other_process)
    thread.start()
    assert report.main(["op", "--watch"]) == 0
    thread.join()
    assert ["3 of 8" in seen[0], "4 of 8" in seen[1]] == [True, True]
    assert all('<meta http-equiv="refresh"' in page for page in seen)
    assert "refresh" not in (here / "report.html").read_text()
    said = capsys.readouterr()
    assert said.err.count("the store is busy") == 1
    assert said.out.splitlines() == [
        "report.html follows op/run. Ctrl-C ends it.",
        "report.html: the report of op/run is written.",
    ]

    # The last start was never logged, and its time is none.
    started = {"step": 9, "seconds": 0, "resumed_at": [2, 9]}
    (folder / "starts.jsonl").write_text("".join(json.dumps(started | {"time": at}) + "\n" for at in (1.7e9, 1e30)))
    train(folder, 5, 8)
    assert report.main(["op", "--watch"]) == 0, "it ends with the run"
    page = (here / "report.html").read_text()
    assert set(re.findall(r'class="mark" x1="([\d.]+)%"', page)) == {"25.00"}


@pytest.mark.parametrize(
    ("made", "given", "message"),
    [
        ({}, ["nope"], "nope does not exist. Check the path"),
        ({"x/manifest.json": '{"kind": "pairs"}'}, ["x"], "x is pair shards, not a run. `clozeline inspect x` says"),
        ({"x/results.json": '{"scores": {}}'}, ["x"], "x is the output of a suite, not a run. `clozeline inspect x` s"),
        ({"x/results.json": '{"task": ""}', "x/report.html": ""}, ["x"], "not a run. Its report is x/report.html."),
        ({"x/config.json": ""}, ["x"], "x is a model in the Hugging Face format, not a run. Give the run that it"),
        ({"x/state.json": "", "x/manifest.json": ""}, ["x"], "x is a checkpoint, not a run. Give the run's folder"),
        ({"x/clozeline.toml": ""}, ["x"], "x/run does not exist. Check the path, the run.output"),
        ({"x/recipe.toml": ""}, ["x"], "x has not logged a step yet"),
        ({"x/recipe.toml": "", "x/metrics.jsonl": ""}, ["x"], "x has not logged a step yet"),
        (
            {"x/recipe.toml": "", "x/metrics.jsonl": "", "x/checkpoints/step-00000002/state.json": ""},
            ["x"],
            "x has checkpoints, but x/metrics.jsonl holds no step",
        ),
        ({"x/recipe.toml": "", "x/metrics.jsonl": '{"st'}, ["x"], "x has not logged a step yet"),
        ({"x/recipe.toml": "", "x/metrics.jsonl": "\x00\x91"}, ["x"], "x/metrics.jsonl is damaged: no line of it is"),
        ({"x/recipe.toml": "=", "x/metrics.jsonl": ""}, ["x"], "x/recipe.toml is not the recipe of a run"),
        (
            {"x/recipe.toml": "[run]\nmax_steps = 'x'\n", "x/metrics.jsonl": '{"step": 1}\n'},
            ["x"],
            "x/recipe.toml is not the recipe of a run: run.max_steps: Input should be a valid integer. Give",
        ),
        ({"x/recipe.toml": "data = 3\n", "x/metrics.jsonl": '{"step": 1}\n'}, ["x"], "of a run: data: "),
        ({"x/notes.md": ""}, ["x", "--watch"], "x is not a run: it holds no metrics.jsonl and no recipe.toml"),
        ({"x/metrics.jsonl": ""}, ["x"], "x is not a run: it holds no recipe.toml"),
        ({"x": ""}, ["x"], "x is a file, not a run"),
        ({"x/recipe.toml": "", "x/metrics.jsonl": ""}, ["x", "./x"], "x is given twice"),
        ({"report.html": "mine", "x/recipe.toml": "", "x/metrics.jsonl": ""}, ["x", "--output", "report.html"], "kept"),
    ],
)
def test_what_is_no_run(
    here: Path, capsys: pytest.CaptureFixture[str], made: dict[str, str], given: list[str], message: str
) -> None:
    for name, content in made.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(content)
    assert report.main(given) in (2, 3)
    error = capsys.readouterr().err
    assert error.startswith("clozeline: ") and message in error and error.count("\n") == 1
