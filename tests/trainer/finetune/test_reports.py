"""What a fine-tuning tells, in its results, its log, its report and its model card: scores, labels, code that runs."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trainer.finetune.tasks import lines_of, sentence_lines, write_lines, write_task
from trainer.export.model_card import cell
from trainer.finetune.kinds import KINDS
from trainer.finetune.outcome import header_of

OTHER = {"text": "The cat.", "label": "second"}
"""An example of the second label."""


def fine_tuned(finetune, encoder: Path, task: Path, *flags: str) -> dict[str, Any]:
    """The results of one epoch, with what the command printed as "log"."""
    output = task.parent / "out"
    done = finetune(encoder, task, output, "--set", "training.epochs=1", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads((output / "results.json").read_text()) | {"log": done.stdout + done.stderr}


@pytest.fixture(scope="module")
def described(encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with a model card."""
    folder = shutil.copytree(encoder("bert"), tmp_path_factory.mktemp("described") / "encoder")
    (folder / "README.md").write_text("---\nlanguage:\n- en\nlicense: mit\n---\n# E\n")
    return folder


@pytest.fixture(scope="module", params=["sentence", "pair", "choice", "tags", "span"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def told(finetune, described: Path, kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a task of a kind, with the output of one epoch in `out`."""
    folder = tmp_path_factory.mktemp(kind)
    task = write_task(folder, kind, train=64)
    if kind in ("sentence", "choice"):
        # Many examples of one label, so that it is the most frequent one whatever is drawn.
        lines = lines_of(folder / "train.jsonl")
        label = lines[0]["label"]
        write_lines(folder / "train.jsonl", lines[:8] + [line for line in lines[8:] if line["label"] == label])
    more = ("--set", 'metrics=["chunk_f1", "accuracy"]') if kind == "tags" else ()
    fine_tuned(finetune, described, task, *more)
    return folder


def test_the_model_card_has_the_scores_and_how_to_load_the_model(
    described: Path, told: Path, kind: str, monkeypatch
) -> None:
    card = (told / "out/hf/README.md").read_text()
    results = json.loads((told / "out/results.json").read_text())

    front_matter = yaml.safe_load(card.split("---")[1])
    of_task = {"library_name": "transformers", "pipeline_tag": KINDS[kind].pipeline, "tags": ["clozeline", "bert"]}
    assert front_matter == {"language": ["en"], "license": "mit"} | of_task
    assert f"The encoder in the folder `{described.parent.name}/encoder`, of the family bert" in card
    assert '"out/hf")  # this folder, or its name on the Hub\n' in card
    assert "\n\n\n" not in card and str(told.parent) not in card  # paths are private

    [seed] = results["seeds"]
    for name, scores in seed["scores"].items():
        for metric, value in scores.items():
            cells = [name, f"{results['data']['examples'][name]:,}", metric, f"{value:.4f}"]
            if results["baseline"]:
                cells.append(f"{results['baseline'][name][metric]:.4f}")
            assert f"\n| {' | '.join(cells)} |\n" in card
    for label, count in results["data"]["labels"].items():
        assert f"\n| {label} | {count:,} |\n" in card

    [code] = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    loaded: dict[str, object] = {}
    monkeypatch.chdir(told)
    exec(code, loaded)
    assert type(loaded["model"]).__name__.startswith("BertFor")


def test_the_baseline_is_the_most_frequent_training_label(told: Path, kind: str) -> None:
    """A kind without classes has none."""
    results = json.loads((told / "out/results.json").read_text())
    report = (told / "out/report.html").read_text()
    if kind in ("pair", "span"):
        assert results["baseline"] == {} and results["data"]["labels"] == {}
        assert "most frequent label" not in report
        return

    dev = lines_of(told / "dev.jsonl")
    if kind == "tags":
        tags = [tag for line in dev for tag in line["tags"]]
        expected = tags.count("O") / len(tags)
    else:
        label = lines_of(told / "train.jsonl")[0]["label"]
        expected = sum(line["label"] == label for line in dev) / len(dev)
    assert results["baseline"]["dev"]["accuracy"] == pytest.approx(expected)
    assert f"{expected:.4f}" in report


def test_a_label_stays_in_its_cell_and_a_damaged_header_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: [\n---\n")
    assert header_of(str(tmp_path)) == {}
    assert cell("a|b\nc") == "a\\|b c"


def test_random_first_weights_and_arguments_of_trainer_are_told(finetune, described: Path, tmp_path: Path) -> None:
    flags = ("--random_weights", "--set", "trainer.max_grad_norm=0.5")
    fine_tuned(finetune, described, write_task(tmp_path, "span"), *flags)
    card = (tmp_path / "out/hf/README.md").read_text()
    assert "with random first weights" in card and "license" not in card and "[trainer]\nmax_grad_norm = 0.5" in card


def test_sizes_files_and_labels(finetune, encoder, tmp_path: Path) -> None:
    task = write_task(tmp_path, "sentence")
    results = fine_tuned(finetune, encoder("bert"), task, "--set", "training.max_length=7")

    labels = Counter(line["label"] for line in lines_of(tmp_path / "train.jsonl"))
    assert results["data"] == {
        "files": {name: [str(tmp_path / f"{name}.jsonl")] for name in ("train", "dev", "test")},
        "examples": {"train": 48, "dev": 24, "test": 24},
        "shared": [],
        "unlabeled": {},
        "labels": {"first": labels["first"], "second": labels["second"]},
    }

    shown = f"first: {labels['first']}; second: {labels['second']}"
    assert f"examples: 48 train, 24 dev, 24 test ({shown}); 6 steps of 8 per epoch" in results["log"]
    assert "48 of 48 training examples fill a row of 7 tokens" in results["log"]

    report = (tmp_path / "out/report.html").read_text()
    assert f"{tmp_path.name}/dev.jsonl" in report and shown in report
    assert str(tmp_path) not in report, "a page that is shared names no folders of this machine"
    headline = report[: report.index("Scores over all seeds")]
    assert headline.index("accuracy, test") < headline.index("accuracy, dev")


def test_examples_that_several_sets_share_are_counted(finetune, encoder, tmp_path: Path) -> None:
    task = write_task(tmp_path, "sentence")
    train = lines_of(tmp_path / "train.jsonl")
    write_lines(tmp_path / "dev.jsonl", train)
    write_lines(tmp_path / "test.jsonl", [train[0], *({"text": f"New {n}.", "label": "first"} for n in range(11))])
    results = fine_tuned(finetune, encoder("bert"), task)
    log = results["log"]
    assert "48 of 48 dev examples are also train examples, so their scores do not show how well new text is" in log
    assert "1 of 12 test examples are also train examples.\n" in log
    assert "1 of 12 test examples are also dev examples.\n" in log

    assert results["data"]["shared"][0] == {"set": "dev", "other": "train", "examples": 48}
    for page in ("report.html", "hf/README.md"):
        told = (
            "48 of 48 dev examples are also train examples, so their scores do not show how well new text is predicted."
        )
        assert told in (tmp_path / "out" / page).read_text(), page


def test_labels_to_skip_leave_the_other_examples_of_a_test_set_scored(finetune, encoder, tmp_path: Path) -> None:
    task = write_task(tmp_path, "sentence")
    lines = lines_of(tmp_path / "test.jsonl")
    write_lines(tmp_path / "test.jsonl", [*lines, OTHER | {"label": "-"}])
    write_lines(tmp_path / "hidden.jsonl", [{"text": "A cat."}])
    flags = ("--set", 'data.skip_labels=["-"]', "--set", 'data.extra={hidden="hidden.jsonl"}')
    results = fine_tuned(finetune, encoder("bert"), task, *flags)

    assert results["data"]["unlabeled"] == {"test": 1, "hidden": 1}
    predicted = lines_of(tmp_path / "out/seed-0/predictions_test.jsonl")
    right = sum(made["prediction"] == line["label"] for made, line in zip(predicted, lines, strict=False))
    assert len(predicted) == 25 and results["summary"]["test"]["accuracy"]["mean"] == right / 24
    assert results["baseline"].keys() == {"dev", "test"}
    told = "1 of 25 test examples has no label, so it is not scored."
    assert told in results["log"] and told in (tmp_path / "out/report.html").read_text()


def test_a_score_of_guessing_is_told(finetune, encoder, tmp_path: Path) -> None:
    """Without a step at a rate that changes anything, the head predicts one label, or worse."""
    task = write_task(tmp_path, "sentence")
    write_lines(tmp_path / "dev.jsonl", [line | {"label": "first"} for line in sentence_lines(30, 1)] + [OTHER])
    write_lines(tmp_path / "train.jsonl", [line | {"label": "first"} for line in sentence_lines(30, 1)] + [OTHER])
    log = fine_tuned(finetune, encoder("bert"), task, "--set", "training.lr=1e-9")["log"]
    assert 'is no better than that of always predicting "first", 0.9677. Raise training.epochs, which is' in log
    assert "another training.lr, which is 1e-09" in log
