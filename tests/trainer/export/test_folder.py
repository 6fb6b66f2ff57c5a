"""What lies beside the weights of an export: a tokenizer that knows the model, a public card, a config as published."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from schemas.errors import StorageError, UsageError
from schemas.vocabulary import read_vocabulary
from tests.conftest import rows
from tests.small_models import FAMILIES, auto_class
from trainer.export import folder as export_folder
from trainer.export import verify
from trainer.export.cli import main
from trainer.export.convert import export
from trainer.export.request import check_output
from trainer.models.families import FAMILIES as FAMILIES_TRAITS

SHORT = {"run__max_steps": 2, "checkpoint__every": 1, "run__log_every": 1, "schedule__warmup_steps": 1}
POSITIONS = 40


def unfinished(output: Path, *names: str) -> Path:
    """Fill an unfinished folder as an export does, with weights that only their owner may read."""
    folder = output.parent / "unfinished"
    for name in ("config.json", *names):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"clozeline_version": "2"}')
        if file.suffix == ".safetensors":
            file.chmod(0o600)
    return folder


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_an_export_has_the_permissions_that_the_umask_asks_for(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with export_folder.unfinished_folder(str(tmp_path / "new/hf")) as folder:
            (folder / "config.json").write_text("{}")
            (folder / "model.safetensors").touch(mode=0o600)
            export_folder.publish_export(folder, str(tmp_path / "new/hf"))
    finally:
        os.umask(before)
    assert (tmp_path / "new/hf/model.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask
    assert (tmp_path / "new/hf").stat().st_mode & 0o777 == 0o777 & ~umask
    assert {path.name for path in tmp_path.iterdir()} == {"new"}


def test_a_mount_that_refuses_to_change_modes_takes_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a mount gives all files one mode."""

    def refuse(path: Path, mode: int, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    with export_folder.unfinished_folder(str(tmp_path / "hf")) as folder:
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").touch()
        export_folder.publish_export(folder, str(tmp_path / "hf"))
    assert (tmp_path / "hf/model.safetensors").exists()


def test_what_a_killed_export_left_is_removed(tmp_path: Path) -> None:
    for output in (tmp_path / "hf", tmp_path):
        with export_folder.unfinished_folder(str(output)) as folder:
            (folder / "old").touch()
            left = Path(shutil.copytree(folder.parent, tmp_path / "left"))
        left.rename(folder.parent)
        check_output(str(output), False, "run")
        with export_folder.unfinished_folder(str(output)) as again:
            assert again == folder and not list(again.iterdir())
        assert not list(tmp_path.iterdir())


def test_one_export_at_a_time_writes_to_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with export_folder.unfinished_folder(str(tmp_path / "hf")) as folder, (folder / "weights").open("w"):
        with pytest.raises(UsageError, match="--output hf is being written by another export"):
            export_folder.unfinished_folder("hf").__enter__()
        with export_folder.unfinished_folder("other"):
            assert (folder / "weights").exists()
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def exported(training, command, text, pairs, byte_rows, albert_vocab, tmp_path_factory) -> dict[str, Path]:
    """Exports of each family after two steps; ALBERT's has a published tokenizer."""
    folder = tmp_path_factory.mktemp("exported")
    published = rows(command, "published_rows", text, albert_vocab, "sop")
    data = dict.fromkeys(FAMILIES, pairs) | {"roberta": byte_rows, "albert": published}
    for family in FAMILIES:
        changes = {"model__family": family, "model__hidden_size": 64, "data__pairs": data[family]}
        changes |= {"model__max_position_embeddings": POSITIONS} | (
            {"model__embedding_size": 32} if family == "albert" else {}
        )
        done = training.warm(1, folder / family, **SHORT, **changes)
        assert done.returncode == 0, done.stderr
        assert "(checked, to " in export(str(folder / family), str(folder / f"{family}-hf"), None)
    return {family: folder / f"{family}-hf" for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_long_text_is_truncated_to_what_the_model_takes(exported, family: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(exported[family])
    model = auto_class(family).from_pretrained(exported[family]).eval()
    inputs = tokenizer("the river " * 400, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape == (1, POSITIONS)
    with torch.inference_mode():
        assert model(**inputs).to_tuple()[0].isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_get_the_segments_that_training_used(exported, family: str) -> None:
    inputs = AutoTokenizer.from_pretrained(exported[family])("the cat", "the dog sees")
    if FAMILIES_TRAITS[family].type_vocab_size < 2:
        assert "token_type_ids" not in inputs
        return
    vocabulary = read_vocabulary(str(exported[family]))
    b_starts = inputs["input_ids"].index(vocabulary.special_id("sep")) + 1
    expected = [0] * b_starts + [1] * (len(inputs["input_ids"]) - b_starts)
    assert inputs["token_type_ids"] == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_is_as_the_published_ones(exported, family: str) -> None:
    """Of the published configs, BERT's, Megatron-BERT's and Nomic's name no first and last token."""
    config = json.loads((exported[family] / "config.json").read_text())
    vocabulary = read_vocabulary(str(exported[family]))
    ends = {"bos_token_id": vocabulary.special_id("cls"), "eos_token_id": vocabulary.special_id("sep")}
    if family not in ("bert", "megatron-bert", "nomic_bert"):
        assert ends.items() <= config.items()
    else:
        assert not ends.keys() & config.keys()
    assert config["dtype"] == "float32"
    assert {"transformers_version", "clozeline_version"} <= config.keys()
    assert AutoConfig.from_pretrained(exported[family]).dtype == torch.float32


def test_an_earlier_export_is_kept_unless_overwrite_is_given(exported, tmp_path: Path, capsys) -> None:
    run = exported["bert"].with_name("bert")
    out = tmp_path / "hf"
    out.mkdir()
    (out / "config.json").write_text('{"clozeline_version": "0.1"}')
    (out / "notes.txt").write_text("mine")
    (out / "merges.txt").write_text("of an older export")
    assert main([str(run), "--output", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert {path.name for path in out.iterdir()} == {"config.json", "notes.txt", "merges.txt"}

    for _ in range(2):
        assert main([str(run), "--output", str(out), "--overwrite"]) == 0
    assert (out / "notes.txt").read_text() == "mine", "a file that is not ours"
    assert not (out / "merges.txt").exists(), "a file of an older export"


OTHERS = {
    "no-config": {"README.md": "my thesis"},
    "a-published-model": {"config.json": '{"model_type": "bert"}', "README.md": "theirs"},
    "not-JSON": {"config.json": "{", "vocab.txt": "mine"},
    "no-object": {"config.json": '["clozeline_version"]', "vocab.txt": "mine"},
    "a-generator": {"config.json": '{"clozeline_version": "1"}', "generator/config.json": "{}"},
}


@pytest.mark.parametrize("files", OTHERS.values(), ids=OTHERS.keys())
def test_other_folders_are_never_overwritten(exported, files: dict[str, str], tmp_path: Path, capsys) -> None:
    run = exported["bert"].with_name("bert")
    out = tmp_path / "project"
    out.mkdir()
    for name, text in files.items():
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(text)
    assert main([str(run), "--output", str(out), "--overwrite"]) == 2
    assert "holds other files than an export" in capsys.readouterr().err
    assert {str(path.relative_to(out)): path.read_text() for path in out.rglob("*") if path.is_file()} == files


def test_an_export_is_not_written_among_the_checkpoints(exported, capsys) -> None:
    run = exported["bert"].with_name("bert")
    assert main([str(run), "--output", str(run / "checkpoints/step-00000009")]) == 2
    assert "lies among the run's checkpoints" in capsys.readouterr().err
    assert not (run / "checkpoints/step-00000009").exists()


def test_overwrite_takes_an_empty_folder(exported, tmp_path: Path) -> None:
    assert main([str(exported["bert"].with_name("bert")), "--output", str(tmp_path), "--overwrite"]) == 0


def test_the_best_checkpoint_is_exported(training, exported, held_out: Path, tmp_path: Path) -> None:
    """The rate rises to a value that spoils the model, so that the newest checkpoint is not the best."""
    run = tmp_path / "run"
    changes = {"evaluation__pairs": held_out, "evaluation__every": 1, "optimizer__lr": 3.0, "checkpoint__keep": 9}
    assert training.warm(1, run, **SHORT, **changes).returncode == 0
    figures = [
        json.loads((run / f"checkpoints/step-0000000{step}/evaluation.json").read_text())["eval_mlm_loss"]
        for step in (1, 2)
    ]
    best = 1 + figures.index(min(figures))
    assert f"step-0000000{best}" in export(str(run), str(tmp_path / "hf"), None, best=True)
    with pytest.raises(UsageError, match=r"--best: no checkpoint of .* was evaluated"):
        export(str(exported["bert"].with_name("bert")), str(tmp_path / "other"), None, best=True)


def test_new_weights_never_lie_beside_those_of_an_earlier_export(tmp_path: Path, monkeypatch) -> None:
    """transformers prefers the single file, so an interrupted --overwrite would load the old weights unnoticed."""
    earlier = tmp_path / "earlier"
    for name in ("config.json", "generator/config.json"):
        (earlier / name).parent.mkdir(exist_ok=True)
        (earlier / name).write_text('{"clozeline_version": "1"}')
    (earlier / "model.safetensors").write_bytes(b"old weights")
    (earlier / "generator/model.safetensors").write_bytes(b"old weights")
    later = unfinished(earlier, "model-00001-of-00001.safetensors")

    move = export_folder.move_file
    monkeypatch.setattr(export_folder, "move_file", lambda file, url: fail_after_config(move, file, url))
    with pytest.raises(StorageError, match="The disk is full"):
        export_folder.publish_export(later, str(earlier))
    assert [path.name for path in earlier.iterdir()] == ["config.json"]

    monkeypatch.setattr(export_folder, "move_file", move)
    export_folder.publish_export(unfinished(earlier, "generator/config.json"), str(earlier))
    assert sorted(path.name for path in earlier.rglob("*.*")) == [
        "config.json",
        "config.json",
        "model-00001-of-00001.safetensors",
    ]


def fail_after_config(move, file: Path, url: str) -> None:
    if file.name != "config.json":
        raise StorageError("The disk is full.")
    move(file, url)


def test_an_earlier_export_stays_until_the_new_one_is_checked(exported, tmp_path: Path, monkeypatch) -> None:
    run = exported["albert"].with_name("albert")
    earlier = Path(shutil.copytree(exported["albert"], tmp_path / "hf"))
    before = {path.name: path.read_bytes() for path in earlier.iterdir()}
    monkeypatch.setattr(verify, "LARGEST_DIFFERENCE", 0.0)
    assert main([str(run), "--output", str(earlier), "--overwrite"]) == 4
    assert {path.name: path.read_bytes() for path in earlier.iterdir()} == before


@pytest.mark.parametrize(
    ("recipe", "flags", "code", "told"),
    [
        ('model = {family = "xlnet"}', ["--onnx"], 2, "torch's ONNX exporter cannot translate XLNet"),
        ("model = 3", ["--onnx"], 3, "recipe.toml is not the recipe of a run: model.family is unset. Give"),
        ("", ["--average", "2"], 3, "recipe.toml is not the recipe of a run: checkpoint.keep is unset. Give"),
    ],
)
def test_a_recipe_that_does_not_fit_is_told_at_once(
    recipe: str, flags: list[str], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run/checkpoints/step-00000007").mkdir(parents=True)
    (tmp_path / "run/checkpoints/step-00000007/manifest.json").touch()
    (tmp_path / "run/recipe.toml").write_text(recipe)
    assert main([str(tmp_path / "run"), "--output", str(tmp_path / "hf"), *flags]) == code
    assert told in capsys.readouterr().err
