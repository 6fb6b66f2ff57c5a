"""Fine-tunings of every kind of task: what they leave, and that one stopped or killed ends with the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import pipeline

from tests import forked
from tests.trainer.finetune.tasks import lines_of, pair_lines, results_of, write_task

pytestmark = pytest.mark.timeout(600)
FAMILIES = {"sentence": "bert", "pair": "modernbert", "choice": "roberta", "tags": "xlnet", "span": "electra"}
KINDS = [kind for kind in FAMILIES if kind != "sentence"]
"""What test_finetune.py does not train."""

STOPS: list[dict[str, Any]] = [
    {"signal": signal.SIGTERM, "moment": "step", "step": 3},
    {"signal": signal.SIGKILL, "moment": "step", "step": 5},
    {"signal": signal.SIGTERM, "moment": "step", "step": 6},  # the end of an epoch, which is scored first
    {"signal": signal.SIGKILL, "moment": "checkpoint", "step": 10},
]
"""In the first two epochs of six steps each, with a checkpoint every second step."""


@pytest.fixture(scope="module")
def outputs(encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with KIND/straight and KIND/broken, both finished."""
    folder = tmp_path_factory.mktemp("stops")
    commands = []
    changes: dict[str, Any] = {"span": {"stride": 8, "null_threshold": "best"}, "choice": {"epochs": 6}}
    for kind, family in FAMILIES.items():
        task = write_task(folder / kind, kind, max_length=48, save_every=2, **changes.get(kind, {}))
        for name, stops in {"straight": [], "broken": STOPS}.items():
            words = [str(encoder(family)), "--task", str(task), "--output", str(folder / kind / name)]
            commands += [{"words": words, **stop} for stop in stops] + [{"words": words}]

    done = run_commands(folder, commands)
    expected = [{signal.SIGTERM: 75, signal.SIGKILL: -9}.get(command.get("signal"), 0) for command in commands]
    assert json.loads(done.stdout) == expected, done.stderr
    return folder


def run_commands(folder: Path, commands: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Run commands as stopping.py does. folder: for the file with the commands."""
    file = folder / "commands.json"
    file.write_text(json.dumps(commands))
    # The number of threads shows in the last bits of losses.
    words = ["python", "-m", "tests.trainer.finetune.stopping", str(file)]
    done = forked.run(words, os.environ | {"OMP_NUM_THREADS": "1"}, timeout=500)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_result_is_that_of_an_unbroken_one(outputs: Path, kind: str) -> None:
    straight, broken = outputs / kind / "straight", outputs / kind / "broken"
    for name in ("hf/model.safetensors", "hf/config.json", "seed-0/metrics.jsonl", "seed-0/predictions_test.jsonl"):
        assert (broken / name).read_bytes() == (straight / name).read_bytes(), name
    assert results_of(broken) == results_of(straight)
    assert not list(broken.glob("seed-0/checkpoint-*"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_trained_and_scored(outputs: Path, kind: str) -> None:
    output = outputs / kind / "straight"
    seed = results_of(output)["seeds"][0]
    losses = [epoch["loss"] for epoch in seed["epochs"]]
    assert min(losses[1:]) < losses[0]
    assert set(seed["scores"]) == {"dev", "test"}

    if kind == "span":
        parts = {"HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"}
        assert parts < set(seed["scores"]["dev"]) and parts < set(results_of(output)["summary"]["test"])
        assert "NoAns_f1" in (output / "report.html").read_text()

    lines = lines_of(output / "seed-0/predictions_test.jsonl")
    assert len(lines) == 24 and set(lines[0]) == {"id", "prediction"} | ({"score"} if kind == "choice" else set())
    expected = {"pair": float, "choice": int, "tags": list, "span": str}
    assert isinstance(lines[0]["prediction"], expected[kind])


def test_a_pipeline_gives_the_tags_of_whole_words(outputs: Path) -> None:
    folder = outputs / "tags/straight"
    tags = pipeline("token-classification", model=str(folder / "hf"), aggregation_strategy="first")
    text = "The cat sees the river."
    for found in tags(text):
        before, after = text[: found["start"]], text[found["end"] :]
        assert not before[-1:].isalpha() and not after[:1].isalpha(), found


def test_a_pipeline_answers_with_the_number_of_a_regression(outputs: Path) -> None:
    folder = outputs / "pair/straight"
    best = results_of(folder)["best_seed"]
    predictions = lines_of(folder / f"seed-{best}" / "predictions_dev.jsonl")
    pairs = [{"text": line["text"], "text_pair": line["text_pair"]} for line in pair_lines(24, 2)]
    answers = pipeline("text-classification", model=str(folder / "hf"))(pairs)
    assert {answer["label"] for answer in answers} == {"LABEL_0"}
    expected = [line["prediction"] for line in predictions]
    assert [answer["score"] for answer in answers] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("kind", "head"), [("choice", "MultipleChoice"), ("span", "QuestionAnswering")])
def test_heads_without_a_pipeline_load_completely(outputs: Path, kind: str, head: str) -> None:
    folder = outputs / kind / "straight/hf"
    model_class = getattr(transformers, f"AutoModelFor{head}")
    _, told = model_class.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    assert transformers.AutoTokenizer.from_pretrained(folder).is_fast


def test_the_tokenizer_opens_in_transformers_4_and_elsewhere(outputs: Path) -> None:
    for kind in KINDS:
        config = json.loads((outputs / kind / "straight/hf/tokenizer_config.json").read_text())
        assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
        assert not {"is_local", "local_files_only", "name_or_path"} & config.keys()


def test_a_fine_tuned_folder_goes_on_with_another_number_of_labels(finetune, outputs: Path, tmp_path: Path) -> None:
    """A regression's head has one output. Its config tells pipelines not to squeeze that."""
    scored = outputs / "pair/straight/hf"
    assert json.loads((scored / "config.json").read_text())["problem_type"] == "regression"
    task = outputs / "sentence/task.toml"
    done = finetune(scored, task, tmp_path / "out", "--set", "training.epochs=1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("has a head for other labels (LABEL_0), so its head is replaced") == 1


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no optimizer": (lambda seed: (seed / "checkpoint-9/optimizer.pt").unlink(), "optimizer.pt is missing"),
    "another rate": (lambda seed: flip(seed / "checkpoint-9/scheduler.pt"), "scheduler.pt is damaged"),
    "half of the weights": (
        lambda seed: os.truncate(seed / "checkpoint-9/model.safetensors", 999),
        "model.safetensors is damaged",
    ),
    "another best epoch": (lambda seed: flip(seed / "checkpoint-6/model.safetensors"), "the weights of checkpoint-6"),
    "no best epoch": (lambda seed: shutil.rmtree(seed / "checkpoint-6"), "the weights of checkpoint-6"),
}
"""What becomes of checkpoints after a stop at step 9, whose best epoch ended with step 6; and a part of the warning."""


@pytest.fixture(scope="module")
def warnings(encoder: Callable[[str], Path], outputs: Path) -> str:
    """What commands said that continued in outputs/WHAT, copies of a stopped run, each with that damage."""
    task, stopped = outputs / "sentence/task.toml", outputs / "stopped"

    def words(output: Path) -> list[str]:
        return [str(encoder("bert")), "--task", str(task), "--output", str(output)]

    stop = {"words": words(stopped), "signal": signal.SIGTERM, "moment": "step", "step": 9}
    assert json.loads(run_commands(outputs, [stop]).stdout) == [75]
    saved = {path.name for path in (stopped / "seed-0").glob("checkpoint-*")}
    assert saved == {"checkpoint-6", "checkpoint-8", "checkpoint-9"}

    for what, (damage, _) in DAMAGE.items():
        seed = shutil.copytree(stopped, outputs / what) / "seed-0"
        (seed / "checkpoint-best").mkdir()  # a name that is no step is none of ours
        damage(seed)

    done = run_commands(outputs, [{"words": words(outputs / what)} for what in DAMAGE])
    assert json.loads(done.stdout) == [0] * len(DAMAGE), done.stderr
    return done.stderr


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_is_told_and_changes_no_result(outputs: Path, warnings: str, what: str) -> None:
    told = [line for line in warnings.splitlines() if f"{outputs / what}/seed-0/checkpoint-9 is not continued" in line]
    assert len(told) == 1 and DAMAGE[what][1] in told[0]
    for name in ("hf/model.safetensors", "seed-0/metrics.jsonl"):
        assert (outputs / what / name).read_bytes() == (outputs / "sentence/straight" / name).read_bytes(), name
