"""README.md of a fine-tuned folder: front matter, scores, labels, and code that runs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.trainer.finetune.tasks import write_task
from trainer.finetune.outcome import PIPELINES, header_of, in_cell


def card_of(finetune, encoder, task: Path, *flags: str) -> str:
    output = task.parent / "out"
    folder = Path(shutil.copytree(encoder("bert"), task.parent / "encoder"))
    (folder / "README.md").write_text("---\nlanguage:\n- en\nlicense: mit\n---\n# E\n")
    done = finetune(folder, task, output, "--set", "training.epochs=1", *flags)
    assert done.returncode == 0, done.stderr
    return (output / "hf/README.md").read_text()


@pytest.mark.parametrize("kind", ["sentence", "pair", "choice", "tags", "span"])
def test_it_has_the_scores_and_how_to_load_the_model(finetune, encoder, tmp_path: Path, monkeypatch, kind: str) -> None:
    card = card_of(finetune, encoder, write_task(tmp_path, kind))
    results = json.loads((tmp_path / "out/results.json").read_text())

    front_matter = yaml.safe_load(card.split("---")[1])
    of_task = {"library_name": "transformers", "pipeline_tag": PIPELINES[kind], "tags": ["clozeline", "bert"]}
    assert front_matter == {"language": ["en"], "license": "mit"} | of_task
    assert f"The encoder in the folder `{tmp_path.name}/encoder`, of the family bert" in card
    assert '"out/hf")  # this folder, or its name on the Hub\n' in card
    assert "\n\n\n" not in card and str(tmp_path) not in card  # paths are private

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
    monkeypatch.chdir(tmp_path)
    exec(code, loaded)
    assert type(loaded["model"]).__name__.startswith("BertFor")


def test_a_label_stays_in_its_cell_and_a_damaged_header_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: [\n---\n")
    assert header_of(str(tmp_path)) == {}
    assert in_cell("a|b\nc") == "a\\|b c"


def test_random_first_weights_and_arguments_of_trainer_are_told(finetune, encoder, tmp_path: Path) -> None:
    flags = ("--random_weights", "--set", "trainer.max_grad_norm=0.5")
    card = card_of(finetune, encoder, write_task(tmp_path, "span"), *flags)
    assert "with random first weights" in card and "license" not in card and "[trainer]\nmax_grad_norm = 0.5" in card
