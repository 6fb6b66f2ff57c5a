"""Linear probes: the optimum of scikit-learn, and a score for every layer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from schemas.errors import DataError, UsageError
from tests.trainer.suite.conftest import subject_lines, tag_lines, write_task
from trainer.finetune.task import Task
from trainer.suite.cli import main as suite_main
from trainer.suite.cli import parser
from trainer.suite.encoders import Encoder
from trainer.suite.plan import Plan, jobs_of, shown_best_layer
from trainer.suite.probe.command import main, open_encoder
from trainer.suite.probe.logistic import fit
from trainer.suite.probe.tasks import check_probed, open_probe
from trainer.suite.run import probe_data


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_classifier_is_that_of_scikit_learn(classes: int) -> None:
    random = np.random.default_rng(classes)
    vectors = random.normal(size=(300, 8)).astype(np.float32) * random.uniform(0.1, 10, size=8).astype(np.float32)
    labels = (vectors @ random.normal(size=(8, classes)) + random.normal(size=(300, classes))).argmax(axis=1)
    vectors[:, 3] = 1.0  # a feature that is always the same

    ours = fit(vectors, labels, classes)
    scaled = StandardScaler().fit_transform(vectors.astype(np.float64))
    theirs = LogisticRegression(C=1.0, tol=1e-8, max_iter=5000).fit(scaled, labels)
    assert np.mean(ours.predict(vectors) == theirs.predict(scaled)) > 0.99
    if classes > 2:  # with two classes theirs has one row of weights, and half the penalty
        assert ours.weights_CH == pytest.approx(theirs.coef_, abs=2e-2)


def test_a_class_without_examples_is_never_chosen() -> None:
    vectors = np.array([[0.0], [1.0], [0.1], [0.9]], dtype=np.float32)
    assert fit(vectors, np.array([0, 2, 0, 2]), 3).predict(vectors).tolist() == [0, 2, 0, 2]


@pytest.mark.parametrize(("kind", "lines"), [("sentence", subject_lines), ("tags", tag_lines)])
def test_every_layer_gets_a_score(kind: str, lines: Callable, masked_lm: Callable[[int], Path], tmp_path: Path) -> None:
    write_task(tmp_path, "task", kind, lines)
    words = [str(masked_lm(0)), "--task", str(tmp_path / "task.toml"), "--data", str(tmp_path)]
    found = []
    for name in ("one", "two"):
        assert main([*words, "--output", str(tmp_path / name)], "test") == 0
        found.append(json.loads((tmp_path / name / "results.json").read_text()))

    assert found[0]["layers"] == found[1]["layers"]
    assert len(found[0]["layers"]) == 3  # embeddings and two layers
    # The word itself is in its embedding, and says who and what it is far more often than not.
    assert max(found[0]["layers"]) > 0.6
    assert found[0]["examples"] == {"fitted": 40, "train": 40, "dev": 24}


@pytest.mark.parametrize(
    ("kind", "lines", "metric"),
    [("sentence", subject_lines, "accuracy"), ("tags", tag_lines, "accuracy"), ("tags", tag_lines, "chunk_f1")],
)
def test_the_baseline_is_the_most_frequent_label_of_the_training_set(
    kind: str, lines: Callable, metric: str, masked_lm: Callable[[int], Path], tmp_path: Path
) -> None:
    write_task(tmp_path, "task", kind, lines)
    words = [str(masked_lm(0)), "--task", str(tmp_path / "task.toml"), "--data", str(tmp_path)]
    words += ["--set", f'metrics=["{metric}"]']
    assert main([*words, "--output", str(tmp_path / "out")], "test") == 0
    found = json.loads((tmp_path / "out/results.json").read_text())["baseline"]

    def labels(count: int, seed: int) -> list[str]:
        return [label for line in lines(count, seed) for label in (line.get("tags") or [line["label"]])]

    train, dev = labels(40, 1), labels(24, 2)
    label = max(sorted(set(train)), key=train.count)  # of two that are as frequent, the first
    assert found["label"] == label
    # All words are "O", so no chunk is found.
    expected = 0.0 if metric == "chunk_f1" else dev.count(label) / len(dev)
    assert found["score"] == pytest.approx(expected)


def test_the_log_line_of_a_probe_has_a_score() -> None:
    results = {"metric": "accuracy", "layers": [0.5, 0.75, 0.625]}
    assert shown_best_layer(results) == "accuracy 0.7500 (layer 1 of 0 to 2)"


def test_what_has_no_classes_is_refused() -> None:
    data = {"train": "a.jsonl", "dev": "b.jsonl"}
    for content in (
        {"name": "x", "kind": "choice", "data": data},
        {"name": "x", "kind": "pair", "data": {**data, "labels": "number"}},
    ):
        with pytest.raises(UsageError, match="--probe: x is a task"):
            check_probed(Task.model_validate(content))


def test_changes_whose_value_is_a_url_reach_the_probe(tmp_path: Path) -> None:
    write_task(tmp_path, "task", "sentence", subject_lines)
    changes = [f"data.dev=file://{tmp_path}/task/dev.jsonl", "subjects:training.batch=2"]
    probe = open_probe(str(tmp_path / "task.toml"), str(tmp_path), changes)
    assert probe.task.data.dev == f"{tmp_path}/task/dev.jsonl"

    plan = Plan(None, [Encoder("first", "folder")], "", tmp_path / "out", 1, probe)
    [job] = jobs_of(plan)
    assert job.words[-2:] == ("--set", changes[0])


def test_missing_files_of_the_probe_are_named_before_the_start(
    masked_lm: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path, "task", "sentence", subject_lines)
    (tmp_path / "task/dev.jsonl").unlink()
    words = [str(masked_lm(0)), "--probe", str(tmp_path / "task.toml"), "--output", str(tmp_path / "out")]
    assert suite_main(words) == 3
    error = capsys.readouterr().err
    assert "1 of its files cannot be found" in error and "task/dev.jsonl (from https://example.org/task)" in error
    assert not (tmp_path / "out").exists()


def test_the_probe_of_a_suite_has_its_own_folder(suite_file: Path, tmp_path: Path) -> None:
    write_task(tmp_path / "elsewhere", "task", "sentence", subject_lines)
    task = str(tmp_path / "elsewhere/task.toml")

    def data_of(*words: str) -> str:
        return probe_data(parser("test").parse_args(["folder", "--output", "out", *words]))

    assert data_of("--probe", task) == str(tmp_path / "elsewhere")
    assert data_of("--probe", task, "--data", "given") == "given"
    suite = ("--suite", str(suite_file), "--data", str(suite_file.parent))
    assert data_of("--probe", task, *suite) == str(tmp_path / "elsewhere")
    assert data_of("--probe", "glue/rte", *suite) == str(suite_file.parent)


def test_a_folder_with_missing_or_damaged_weights_is_an_error(
    masked_lm: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a layer would be probed that is random, or the error would be a traceback."""
    folder = tmp_path / "encoder"
    shutil.copytree(masked_lm(0), folder)
    weights = load_file(folder / "model.safetensors")
    lost = "bert.encoder.layer.1.output.dense.weight"
    save_file(
        {name: tensor for name, tensor in weights.items() if name != lost},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(DataError, match=r"lacks 1 weights of its encoder, such as .*layer\.1\.output\.dense\.weight"):
        open_encoder(str(folder), random_weights=False)
    assert open_encoder(str(folder), random_weights=True)

    (folder / "model.safetensors").write_bytes(b"\x00" * 100)
    write_task(tmp_path, "task", "sentence", subject_lines)
    words = ["--task", str(tmp_path / "task.toml"), "--data", str(tmp_path), "--output", str(tmp_path / "out")]
    assert main([str(folder), *words], "test") == 3
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("clozeline: ")]
    assert f"the weights in {folder} cannot be read" in line
