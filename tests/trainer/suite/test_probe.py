"""Linear probes: a score for every layer, on the examples that the task names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from schemas.errors import DataError, UsageError
from tests.trainer.finetune.conftest import write_encoder
from tests.trainer.suite.conftest import changed, subject_lines, tag_lines, write_task
from trainer.finetune.examples import TagExample
from trainer.finetune.job import FeatureSet
from trainer.finetune.kinds import kind_of
from trainer.finetune.opening import open_tokenizer
from trainer.finetune.task import Task
from trainer.suite.cli import main as suite_main
from trainer.suite.cli import parser
from trainer.suite.probe import layer_vectors, main, open_encoder
from trainer.suite.run import check_probed, probed_task


@pytest.mark.parametrize(
    ("kind", "lines", "metric"),
    [("sentence", subject_lines, "accuracy"), ("tags", tag_lines, "accuracy"), ("tags", tag_lines, "chunk_f1")],
)
def test_every_layer_and_the_most_frequent_label_get_a_score(
    kind: str, lines: Callable, metric: str, masked_lm: Callable[[int], Path], tmp_path: Path
) -> None:
    write_task(tmp_path, "task", kind, lines)
    task = changed(tmp_path / "task.toml", metrics=[metric])
    words = [str(masked_lm(0)), "--task", str(task), "--data", str(tmp_path)]
    for name in ("one", "two"):
        assert main([*words, "--output", str(tmp_path / name)], "test") == 0
    found, again = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))

    assert found["layers"] == again["layers"]
    assert len(found["layers"]) == 3  # embeddings and two layers
    # The word itself is in its embedding, and says who and what it is far more often than not.
    assert max(found["layers"]) > 0.6
    assert found["examples"] == {"fitted": 40, "train": 40, "dev": 24}

    def labels(count: int, seed: int) -> list[str]:
        return [label for line in lines(count, seed) for label in (line.get("tags") or [line["label"]])]

    train, dev = labels(40, 1), labels(24, 2)
    label = max(sorted(set(train)), key=train.count)  # of two that are as frequent, the first
    # All words are "O", so no chunk is found.
    expected = 0.0 if metric == "chunk_f1" else dev.count(label) / len(dev)
    assert found["baseline"] == {"label": label, "score": pytest.approx(expected)}


def test_what_has_no_classes_is_refused() -> None:
    data = {"train": "a.jsonl", "dev": "b.jsonl"}
    for content in (
        {"name": "x", "kind": "choice", "data": data},
        {"name": "x", "kind": "pair", "data": {**data, "labels": "number"}},
    ):
        with pytest.raises(UsageError, match="--probe: x is a task"):
            check_probed(Task.model_validate(content))


def test_a_long_sentence_has_a_vector_for_each_word(vocab: Path, xlnet_vocab: Path, tmp_path: Path) -> None:
    """Whether its words fit into one row or into several, and on whichever side the tokenizer pads."""
    words = ("The", "captain", "remembers", "unthinkable", "mountains", "and", "rivers")
    examples = [TagExample("0", words, tuple(range(7))), TagExample("1", words[:2], (0, 1))]
    data = {"train": "a.jsonl", "dev": "b.jsonl"}
    task = Task.model_validate({"name": "x", "kind": "tags", "data": data})
    for family, vocabulary in (("bert", vocab), ("xlnet", xlnet_vocab)):
        folder = str(tmp_path / family)
        write_encoder(family, vocabulary, tmp_path / family)
        model = open_encoder(folder, random_weights=False)
        for max_length in (8, 64):
            kind = kind_of(task, "abcdefg", open_tokenizer(folder, "tags"), longest=max_length)
            features = kind.features(examples)
            assert len(features) == 2 or max_length == 8
            [together] = layer_vectors(model, kind, FeatureSet(examples, features))
            vectors_of = {number: vectors_LNH.shape[1] for number, vectors_LNH in together.items()}
            assert vectors_of == {number: len(feature["words"]) for number, feature in enumerate(features)}
            assert sum(vectors_of.values()) == 9

        # In one batch with a longer row, the vectors are those of the row alone.
        [alone] = layer_vectors(model, kind, FeatureSet(examples[1:], kind.features(examples[1:])))
        assert np.allclose(together[1], alone[0], atol=1e-5)


def test_a_change_whose_value_is_a_url_reaches_the_probe(tmp_path: Path) -> None:
    write_task(tmp_path, "task", "sentence", subject_lines)
    url = f"file://{tmp_path}/task/dev.jsonl"
    words = ["folder", "--probe", str(tmp_path / "task.toml"), "--output", "out", "--suite", "suite.toml"]
    options = parser("test").parse_args([*words, "--set", f"data.dev={url}", "--set", "subjects:training.batch=2"])
    probed = probed_task(options)
    assert probed.task.data.dev == f"{tmp_path}/task/dev.jsonl"
    assert probed.task.training.batch != 2


def test_missing_files_of_the_probe_are_named_before_the_start(
    masked_lm: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path, "task", "sentence", subject_lines)
    (tmp_path / "task/dev.jsonl").unlink()
    words = [str(masked_lm(0)), "--probe", str(tmp_path / "task.toml"), "--output", str(tmp_path / "out")]
    assert suite_main(words) == 3
    error = capsys.readouterr().err
    assert "task/dev.jsonl, the dev set of task, does not exist. It comes from https://example.org/task." in error
    assert not (tmp_path / "out").exists()


def test_the_probe_of_a_suite_has_its_own_folder(suite_file: Path, tmp_path: Path) -> None:
    write_task(tmp_path / "elsewhere", "task", "sentence", subject_lines)
    task = str(tmp_path / "elsewhere/task.toml")
    given = str(tmp_path / "elsewhere")

    def data_of(*words: str) -> str:
        return probed_task(parser("test").parse_args(["folder", "--output", "out", "--probe", task, *words])).folder

    assert data_of() == str(tmp_path / "elsewhere")
    assert data_of("--data", given) == given
    assert data_of("--suite", str(suite_file), "--data", str(suite_file.parent)) == str(tmp_path / "elsewhere")


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
