"""An encoder that cannot judge minimal pairs is known at the start, and not after hours of training."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import transformers

from schemas.errors import UsageError
from trainer.suite.cli import main, parser
from trainer.suite.encoders import Encoder
from trainer.suite.left_out import pairs_left_out
from trainer.suite.minimal_pairs.refusals import refusal_at_start
from trainer.suite.plan import Plan, jobs_of
from trainer.suite.run import order_of
from trainer.suite.suite_file import OpenSuite, open_suite


def encoder(folder: Path, config: dict[str, Any], random_weights: bool = False) -> Encoder:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return Encoder(folder.name, str(folder), random_weights=random_weights)


@pytest.fixture
def bare(masked_lm: Callable[[int], Path], tmp_path: Path) -> Path:
    """An encoder without a head, such as a sentence encoder."""
    folder = tmp_path / "bare"
    transformers.AutoModel.from_pretrained(masked_lm(0)).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(masked_lm(0)).save_pretrained(folder)
    return folder


def with_optional_pairs(suite_file: Path) -> Path:
    content = tomllib.loads(suite_file.read_text())
    content["minimal_pairs"][0]["optional"] = True
    suite_file.write_text(tomli_w.dumps(content))
    return suite_file


@pytest.mark.parametrize(
    ("model_type", "architectures", "refused"),
    [
        ("bert", ["BertModel"], True),
        ("modernbert", ["ModernBertForSequenceClassification"], True),
        ("electra", ["ElectraForPreTraining"], True),
        ("xlnet", ["XLNetLMHeadModel"], True),
        ("bert", ["BertForMaskedLM"], False),
        ("bert", ["BertForPreTraining"], False),
        ("electra", ["ElectraForMaskedLM"], False),
        ("xlm", ["XLMWithLMHeadModel"], False),
        ("deberta-v2", None, False),
    ],
)
def test_the_configuration_tells(
    model_type: str, architectures: list[str] | None, refused: bool, tmp_path: Path
) -> None:
    found = refusal_at_start(encoder(tmp_path / "one", {"model_type": model_type, "architectures": architectures}))
    assert (found is not None) == refused


def test_random_weights_have_every_head(tmp_path: Path) -> None:
    config = {"model_type": "bert", "architectures": ["BertModel"]}
    assert refusal_at_start(encoder(tmp_path / "one", config, random_weights=True)) is None


@pytest.mark.parametrize(("family", "refused"), [("bert", False), ("electra", True), ("xlnet", True)])
def test_a_checkpoint_is_judged_alike_before_and_after_its_export(family: str, refused: bool, tmp_path: Path) -> None:
    """Otherwise the continuation of a suite that was stopped could be refused."""
    folder = tmp_path / "step-10"
    checkpoint = Encoder("step-10", str(folder), manifest="manifest.json", family=family)
    assert (refusal_at_start(checkpoint) is not None) == refused

    encoder(folder, {"model_type": family, "architectures": ["BertModel"]})
    assert (refusal_at_start(checkpoint) is not None) == refused


def test_required_pairs_are_refused_before_anything_starts(
    bare: Path, suite_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(bare), "--suite", str(suite_file), "--output", str(tmp_path / "out")]
    capsys.readouterr()
    assert main(words) == 2
    assert capsys.readouterr().err == (
        f"clozeline: {bare} cannot judge minimal pairs: it has no head that predicts masked tokens. Bare encoders and "
        "fine-tuned folders have none. The suite small contains the minimal pairs order: leave these scores empty with "
        "--skip_missing, or name other tasks with --only.\n"
    )
    assert not (tmp_path / "out").exists()


def test_only_the_scores_that_cannot_be_are_left_out(suite_file: Path, tmp_path: Path) -> None:
    can = encoder(tmp_path / "can", {"model_type": "bert", "architectures": ["BertForMaskedLM"]})
    cannot = encoder(tmp_path / "cannot", {"model_type": "bert", "architectures": ["BertModel"]})

    def jobs(suite: OpenSuite, skip: bool) -> list[str]:
        unscored = pairs_left_out(suite, [can, cannot], skip)
        plan = Plan(suite, [can, cannot], "", tmp_path / "out", 1, unscored=unscored)
        return [job.name for job in jobs_of(plan)]

    suite = open_suite(str(suite_file), ["tags", "order"], [])
    assert jobs(suite, skip=True) == ["can/tags", "cannot/tags", "can/order"]
    assert jobs(open_suite(str(suite_file), ["tags"], []), skip=False) == ["can/tags", "cannot/tags"]
    with pytest.raises(UsageError, match="minimal pairs order: leave these scores empty with --skip_missing"):
        jobs(suite, skip=False)

    optional = open_suite(str(with_optional_pairs(suite_file)), ["tags", "order"], [])
    assert jobs(optional, skip=False) == ["can/tags", "cannot/tags", "can/order"]


def test_a_suite_of_which_no_score_is_left(
    bare: Path, suite_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = str(with_optional_pairs(suite_file))
    words = [str(bare), "--suite", suite, "--only", "order", "--output", str(tmp_path / "out")]
    capsys.readouterr()
    assert main(words) == 2
    assert capsys.readouterr().err.endswith("have none. Nothing is left to run. Choose other tasks.\n")
    assert not (tmp_path / "out").exists()

    # A probe needs no head.
    task = str(suite_file.parent / "tags.toml")
    assert order_of(parser("test").parse_args([*words, "--probe", task])).jobs


@pytest.mark.timeout(300)
def test_the_table_says_why_a_score_was_left_out(
    bare: Path, suite_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    words = [str(bare), "--suite", str(with_optional_pairs(suite_file)), "--only", "tags", "order", "--seeds", "1"]
    assert main([*words, "--output", str(output)]) == 0, capsys.readouterr()
    assert "bare/order is left out: " in capsys.readouterr().out

    table = (output / "table.md").read_text()
    assert "| order | accuracy | - |" in table
    assert f"- bare/order: {bare} cannot judge minimal pairs: it has no head" in table
