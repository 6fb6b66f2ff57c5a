"""The pages on fine-tuning, suites and adaptation: their commands run as written."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import transformers

from schemas.manifest import read_manifest
from tests.docs.conftest import Sandbox, put_published_model
from tests.docs.pages import PAGES, blocks, commands, indented_blocks
from tests.trainer.finetune.tasks import write_task as write_task_of_kind
from tests.trainer.suite.conftest import minimal_pairs, subject_lines, tag_lines, verb_lines, write_lines, write_task


@pytest.mark.timeout(600)
def test_an_encoder_is_adapted(sandbox: Sandbox, vocab: Path) -> None:
    put_published_model(sandbox.folder / "models/bert-base-uncased", vocab)
    lines = [json.dumps({"text": f"The cat sees the river {i}.", "label": "ab"[i % 2]}) + "\n" for i in range(60)]
    for name, part in (("train", lines[:40]), ("dev", lines[40:])):
        Path(f"{name}.jsonl").write_text("".join(part))
    task = {"name": "letters", "kind": "sentence", "data": {"train": "train.jsonl", "dev": "dev.jsonl"}}
    Path("task.toml").write_text(tomli_w.dumps(task))

    sandbox.run_page("docs/adapt.md")
    assert Path("out/task/texts.jsonl").read_text().count("\n") == 40
    assert read_manifest("out/task/pairs", "pairs").totals["rows"] == 40, "a row for each example"
    for step, before in (("domain", "models/bert-base-uncased"), ("task", "out/domain/hf")):
        recipe = tomllib.loads(Path(f"out/{step}/run/recipe.toml").read_text())
        assert (recipe["model"]["init_from"], recipe["model"]["hidden_size"]) == (before, 32)
    assert json.loads(Path("out/adapted/results.json").read_text())["encoder"] == "out/task/hf"

    # Repeated, the commands of a step succeed, and nothing that is finished is done again.
    checkpoint = Path("out/task/run/checkpoints/step-00000006/state.json")
    trained = checkpoint.stat().st_mtime_ns
    for words in commands("docs/adapt.md"):
        if any("out/task/" in word for word in words) and "--seeds" not in words:
            sandbox.run_command(words)
    assert checkpoint.stat().st_mtime_ns == trained


@pytest.mark.timeout(600)
def test_fine_tuning(sandbox: Sandbox, vocab: Path) -> None:
    put_published_model(sandbox.folder / "models/encoder", vocab)
    write_task_of_kind(sandbox.folder / "review", "sentence")
    Path("review/task.toml").write_text(next(text for text in blocks("docs/finetune.md", "toml")))
    heads = {
        "pairs": "SequenceClassification",
        "tags": "TokenClassification",
        "answers": "QuestionAnswering",
        "endings": "MultipleChoice",
    }
    for output, head in heads.items():
        model_class = getattr(transformers, f"AutoModelFor{head}")
        model_class.from_pretrained("models/encoder").save_pretrained(f"out/{output}/hf")
        transformers.AutoTokenizer.from_pretrained("models/encoder").save_pretrained(f"out/{output}/hf")
    sandbox.run_page("docs/finetune.md")
    assert Path("out/reviews/hf/model.safetensors").exists()
    check_keys_of_results(json.loads(Path("out/reviews/results.json").read_text()))


def check_keys_of_results(results: dict[str, Any]) -> None:
    """Check that the formats page explains every key of results.json."""
    section = PAGES["docs/formats.md"].split("### results.json")[1].split("\n### ")[0]
    seed = results["seeds"][0]
    [spread, *_] = results["summary"]["dev"].values()
    metrics = set(results["metrics"])
    for key in [*results, *spread, *seed, *(set(seed["epochs"][0]) - metrics)]:
        assert f"`{key}`" in section, key


@pytest.mark.timeout(900)
def test_suites_of_folders_and_of_a_run(sandbox: Sandbox, vocab: Path, pairs: Path) -> None:
    for name in ("out/hf", "models/other"):
        put_published_model(sandbox.folder / name, vocab)
    sandbox.put(pairs, "out/pairs")
    train = ["clozeline", "train", "--config", "tiny", "--set", "data.pairs=out/pairs", "--set", "run.output=out/run"]
    done = sandbox.run(sandbox.shrunk(train))
    assert done.returncode == 0, done.stderr

    folder = sandbox.folder / "suites"
    folder.mkdir()
    write_task(folder, "subjects", "sentence", subject_lines)
    write_task(folder, "verbs", "sentence", verb_lines)
    write_task(folder, "tags", "tags", tag_lines)
    write_lines(folder / "pairs/order.jsonl", minimal_pairs(12, 3))
    [suite] = [text for text in indented_blocks("docs/suites.md") if "[tasks." in text]
    (folder / "nouns.toml").write_text(suite)

    sandbox.run_page("docs/suites.md")
    assert "| verbs | accuracy |" in Path("out/nouns/table.md").read_text()
    assert "Linear probe of each layer: tags" in Path("out/probe/report.html").read_text()
    assert "Scores of nouns over hours" in Path("out/run/report.html").read_text()
