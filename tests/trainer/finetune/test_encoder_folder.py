"""A folder that holds no encoder is refused with what it is instead."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from schemas.errors import DataError, UsageError
from trainer.finetune import cli
from trainer.finetune.encoder_folder import check_encoder_files, check_encoder_folder
from trainer.finetune.opening import first_line, open_tokenizer, open_weights, read_config
from trainer.suite.encoders import encoders_of


def refusal(folder: Path) -> str:
    with pytest.raises(UsageError) as refused:
        check_encoder_folder(str(folder))
    return str(refused.value)


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nothing").startswith(f"{tmp_path / 'nothing'} does not exist. Give the folder")


@pytest.mark.parametrize(
    ("name", "target"),
    [("bert-base-uncased", "models/bert-base-uncased"), ("google-bert/bert-base", "models/bert-base")],
)
def test_a_name_on_the_hub(name: str, target: str) -> None:
    message = refusal(Path(name))
    assert message.startswith(f"{name} does not exist. Give the folder of a downloaded model")
    assert message.endswith(
        f"not downloaded automatically. Run `hf download {name} --local-dir {target}`, then give {target}."
    )


def test_a_path_is_not_a_name_on_the_hub(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", Path("../nothing"), Path("out/run/hf")):
        assert "hf download" not in refusal(path)


def test_a_mistyped_path_gets_the_near_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models/encoder").mkdir(parents=True)
    message = refusal(Path("models/encodr"))
    assert message.startswith("models/encodr does not exist. Did you mean models/encoder? Give the folder")
    assert "hf download" not in message


def test_a_folder_without_a_tokenizer_or_weights_is_refused_as_one_without_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(UsageError, match=r"has no tokenizer\. Expected tokenizer.json, vocab.txt, vocab.json or a "):
        check_encoder_files(str(tmp_path))
    with pytest.raises(UsageError, match=r"has no tokenizer\. Expected tokenizer.json"):
        open_tokenizer(str(tmp_path), "sentence")

    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "training_args.bin").touch()  # of transformers' Trainer
    (tmp_path / "model.fp16.safetensors").touch()  # which transformers would not find
    with pytest.raises(UsageError, match=r"holds no model\.safetensors\. .* Or use --random_weights to train from"):
        check_encoder_files(str(tmp_path))
    with pytest.raises(UsageError, match="holds no model"):
        encoders_of([str(tmp_path)], random_weights=False)
    check_encoder_files(str(tmp_path), random_weights=True)

    (tmp_path / "pytorch_model.bin").touch()
    for check in (check_encoder_files, lambda folder: encoders_of([folder], random_weights=False)):
        with pytest.raises(UsageError, match=r"holds pytorch_model\.bin but no model\.safetensors\. Opening a pickle"):
            check(str(tmp_path))

    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00001.safetensors"}}')
    with pytest.raises(DataError, match=r"index\.json names model-00001-of-00001\.safetensors, which .* lacks\."):
        check_encoder_files(str(tmp_path))
    (tmp_path / "model-00001-of-00001.safetensors").touch()
    check_encoder_files(str(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_link_to_nothing_is_named(name: str, tmp_path: Path) -> None:
    """As in a cache of the Hub whose blobs were removed."""
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / file).touch()
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("../blobs/1")
    with pytest.raises(DataError, match=rf"{name} is a link to \.\./blobs/1, which does not exist\. Download it again"):
        check_encoder_files(str(tmp_path))


def test_a_tokenizer_that_is_damaged_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match="has no tokenizer that transformers") as refused:
        open_tokenizer(str(tmp_path), "sentence")
    message = str(refused.value)
    assert "\n" not in message and ".." not in message
    assert message.endswith("Export or download the whole folder again.")


def test_a_tokenizer_with_more_tokens_than_rows_of_embeddings(encoder, tmp_path: Path) -> None:
    folder = shutil.copytree(encoder("bert"), tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = len(tokenizer)
    tokenizer.add_tokens(["zzz"])
    tokenizer.save_pretrained(folder)
    told = (
        rf"hf has {rows + 1} tokens, but its embeddings have {rows} rows\. .* call resize_token_embeddings\({rows + 1}"
    )
    with pytest.raises(DataError, match=told):
        open_tokenizer(str(folder), "sentence")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value: float, encoder, tmp_path: Path) -> None:
    folder = shutil.copytree(encoder("bert"), tmp_path / "hf")
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.1.output.dense.bias"][3] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    told = r"hf: encoder\.layer\.1\.output\.dense\.bias holds values that are not finite\. Export or download"
    with pytest.raises(DataError, match=told):
        open_weights(AutoModel, str(folder))


def test_a_first_line_that_announces_a_list_is_not_cut_off() -> None:
    assert (
        first_line(ValueError("\nNot one of: \n(1) a file,\n(2) a folder.\n"))
        == "Not one of: (1) a file, (2) a folder."
    )
    assert first_line(ValueError("No file.\nSee the manual.")) == "No file."
    assert first_line(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, " but an empty folder. Give the folder of a downloaded model"),
        ({"notes.txt": ""}, ". Give the folder of a downloaded model"),
        ({"recipe.toml": "", "lock": ""}, " but the folder of a run. `clozeline export` writes its encoder, and"),
        ({"clozeline.toml": ""}, " but a folder of `clozeline start`. It has no encoder yet"),
        (
            {"clozeline.toml": "", "hf/config.json": ""},
            " but a folder of `clozeline start`. Give its encoder, {at}/hf.",
        ),
        ({"manifest.json": '{"kind": "text"}'}, " but text shards. Give the folder of a downloaded model"),
    ],
)
def test_a_folder_without_a_configuration(files: dict[str, str], told: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    start = f"{tmp_path} has no config.json, so it is not an encoder in the Hugging Face format"
    assert refusal(tmp_path).startswith(start + told.format(at=tmp_path))
    with pytest.raises(UsageError, match="has no config"):
        read_config(str(tmp_path))


def test_the_command_line_checks_the_folder_before_the_task(tmp_path: Path) -> None:
    words = [str(tmp_path / "nothing"), "--task", "no_task.toml", "--output", str(tmp_path / "out")]
    with pytest.raises(UsageError, match="nothing does not exist"):
        cli._read_request(cli.parser("clozeline finetune").parse_args(words))
