"""What lies beside the weights of an export: a tokenizer that knows the model, a public card, a config as published."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors import SafetensorError

from schemas.errors import StorageError, UsageError
from trainer.export import folder as export_folder
from trainer.export import verify
from trainer.export.cli import main
from trainer.export.convert import export
from trainer.export.request import check_output

SHORT = {"run__max_steps": 2, "checkpoint__every": 1, "run__log_every": 1, "schedule__warmup_steps": 1}


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
def trained(training, tmp_path_factory) -> Path:
    """A run of two steps."""
    out = tmp_path_factory.mktemp("folder") / "run"
    training.trained(1, out, **SHORT)
    return out


def test_an_earlier_export_is_kept_unless_overwrite_is_given(trained: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "hf"
    out.mkdir()
    (out / "config.json").write_text('{"clozeline_version": "0.1"}')
    (out / "notes.txt").write_text("mine")
    (out / "merges.txt").write_text("of an older export")
    assert main([str(trained), "--output", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert {path.name for path in out.iterdir()} == {"config.json", "notes.txt", "merges.txt"}

    for _ in range(2):
        assert main([str(trained), "--output", str(out), "--overwrite"]) == 0
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
def test_other_folders_are_never_overwritten(trained: Path, files: dict[str, str], tmp_path: Path, capsys) -> None:
    out = tmp_path / "project"
    out.mkdir()
    for name, text in files.items():
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(text)
    assert main([str(trained), "--output", str(out), "--overwrite"]) == 2
    assert "holds other files than an export" in capsys.readouterr().err
    assert {str(path.relative_to(out)): path.read_text() for path in out.rglob("*") if path.is_file()} == files


def test_overwrite_takes_an_empty_folder(trained: Path, tmp_path: Path) -> None:
    assert main([str(trained), "--output", str(tmp_path), "--overwrite"]) == 0


def test_the_best_checkpoint_is_exported(training, trained: Path, held_out: Path, tmp_path: Path) -> None:
    """The rate rises to a value that spoils the model, so that the newest checkpoint is not the best."""
    run = tmp_path / "run"
    changes = {"evaluation__pairs": held_out, "evaluation__every": 1, "optimizer__lr": 3.0, "checkpoint__keep": 9}
    training.trained(1, run, **SHORT, **changes)
    figures = [
        json.loads((run / f"checkpoints/step-0000000{step}/evaluation.json").read_text())["eval_mlm_loss"]
        for step in (1, 2)
    ]
    best = 1 + figures.index(min(figures))
    assert f"step-0000000{best}" in export(str(run), str(tmp_path / "hf"), None, best=True)
    with pytest.raises(UsageError, match=r"--best: no checkpoint of .* was evaluated"):
        export(str(trained), str(tmp_path / "other"), None, best=True)


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


@pytest.mark.parametrize(
    "error", [OSError(errno.EFBIG, "File too large"), SafetensorError("I/O error: File too large (os error 27)")]
)
def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path, error: Exception) -> None:
    told = r"File too large.* in .*\. Raise the limit on the size of files \(ulimit -f\)\.$"
    with pytest.raises(StorageError, match=told), export_folder.write_errors("hf", tmp_path):
        raise error


def fail_after_config(move, file: Path, url: str) -> None:
    if file.name != "config.json":
        raise StorageError("The disk is full.")
    move(file, url)


def test_an_earlier_export_stays_until_the_new_one_is_checked(trained: Path, tmp_path: Path, monkeypatch) -> None:
    earlier = tmp_path / "hf"
    export(str(trained), str(earlier), None)
    before = {path.name: path.read_bytes() for path in earlier.iterdir()}
    monkeypatch.setattr(verify, "LARGEST_DIFFERENCE", 0.0)
    assert main([str(trained), "--output", str(earlier), "--overwrite"]) == 4
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
