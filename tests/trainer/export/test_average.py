"""Which weights are exported: those of a checkpoint, or the mean of the last K; and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForPreTraining

from schemas.errors import CheckpointError
from tests.trainer.conftest import saved
from trainer.checkpoint.format import checkpoint_path, steps_saved
from trainer.export.cli import main
from trainer.export.convert import export, read_weights
from trainer.export.request import Writing, last_steps

EVERY_STEP = {"run__max_steps": 5, "checkpoint__every": 1, "checkpoint__keep": 3, "schedule__warmup_steps": 1}


@pytest.fixture(scope="module")
def trained(training, tmp_path_factory) -> Path:
    """A run of five steps that keeps three checkpoints."""
    out = tmp_path_factory.mktemp("average") / "run"
    training.trained(1, out, **EVERY_STEP)
    assert steps_saved(str(out)) == [3, 4, 5]
    return out


def weights_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    return saved(checkpoint_path(str(run), step))


def test_an_export_holds_the_mean_of_the_last_checkpoints(trained: Path, tmp_path: Path) -> None:
    told = export(str(trained), str(tmp_path / "hf"), None, writing=Writing(average=3))
    assert "the mean of steps 3, 4, 5" in told and "(checked, to " in told
    theirs = dict(AutoModelForPreTraining.from_pretrained(tmp_path / "hf").named_parameters())

    name = "encoder.embeddings.token.weight"
    mean = torch.stack([weights_of(trained, step)[name].double() for step in (3, 4, 5)]).mean(0)
    assert torch.equal(theirs["bert.embeddings.word_embeddings.weight"].detach(), mean.float())
    assert not torch.equal(mean.float(), weights_of(trained, 5)[name])
    assert "the mean of those after steps 3, 4, 5." in (tmp_path / "hf" / "README.md").read_text()

    export(str(trained), str(tmp_path / "one"), None)
    assert "mean of those" not in (tmp_path / "one" / "README.md").read_text()


def test_the_last_are_counted_from_the_step_that_is_given(trained: Path, tmp_path: Path) -> None:
    assert last_steps(str(trained), 4, 2) == [3, 4]
    told = export(str(trained), str(tmp_path / "hf"), 4, writing=Writing(average=2))
    assert "the mean of steps 3, 4" in told


def test_an_old_best_checkpoint_is_not_among_the_last(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    shutil.copytree(checkpoint_path(str(run), 3), checkpoint_path(str(run), 1))
    assert steps_saved(str(run)) == [1, 3, 4, 5]
    assert last_steps(str(run), 5, 3) == [3, 4, 5]
    assert main([str(run), "--output", str(tmp_path / "hf"), "--average", "4"]) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--average", "4"],
            "keeps 3 recent checkpoints up to step 5 (3, 4, 5). Average fewer, give a later --step, or",
        ),
        (["--average", "3", "--step", "4"], "keeps 2 recent checkpoints up to step 4 (3, 4). Average fewer"),
        (["--average", "2", "--best"], "--average takes the last checkpoints, not the best one"),
        (["--average", "0"], "--average: '0' is not a whole number above 0"),
        (["--average", "two"], "--average: 'two' is not a whole number above 0"),
    ],
)
def test_what_cannot_be_averaged_is_a_usage_error(
    trained: Path, tmp_path: Path, caplog, capsys, arguments, told
) -> None:
    assert main([str(trained), "--output", str(tmp_path / "hf"), *arguments]) == 2
    assert told in caplog.text + capsys.readouterr().err
    assert not (tmp_path / "hf").exists()


def test_weights_of_another_model_are_refused(trained: Path, tmp_path: Path) -> None:
    other = tmp_path / "step-00000001"
    other.mkdir()
    shapes = {name: tuple(weight.shape) for name, weight in weights_of(trained, 4).items()}
    save_file({"weights/a/0": torch.zeros(2)}, other / "rank-00000.safetensors", {"shapes": '{"a": [2]}'})
    with pytest.raises(CheckpointError, match=r"step-00000001 holds other tensors than a model of the run's recipe"):
        read_weights([other, checkpoint_path(str(trained), 5)], shapes)


def test_a_damaged_checkpoint_is_not_averaged(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    weights = checkpoint_path(str(run), 4) / "rank-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(CheckpointError, match=r"step-00000004 does not verify"):
        export(str(run), str(tmp_path / "hf"), None, writing=Writing(average=2))


def test_a_run_at_a_url_is_averaged_alike(trained: Path, tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("memory").put(str(trained), "/average/run", recursive=True)
    told = export("memory://average/run", str(tmp_path / "hf"), None, writing=Writing(average=2))
    assert "the mean of steps 4, 5" in told
    export(str(trained), str(tmp_path / "local"), None, writing=Writing(average=2))
    assert (tmp_path / "hf/model.safetensors").read_bytes() == (tmp_path / "local/model.safetensors").read_bytes()
    assert json.loads((tmp_path / "hf/config.json").read_text())["model_type"] == "bert"
