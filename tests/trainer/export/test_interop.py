"""An export in other tools: on a stand-in for the Hub, in ONNX Runtime, and in sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

from schemas.errors import StorageError
from tests.hub_stand_in import Hub, running_hub
from tests.small_models import FAMILIES, SMALL_VOCABULARY, random_model, section, write_hf
from trainer.export.cli import main
from trainer.export.convert import export
from trainer.export.onnx_file import write_onnx
from trainer.export.request import Writing
from trainer.models.electra import parts_of

ADDED = {"modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "onnx/model.onnx"}
TEXTS = ["The cat sees the dog.", "A bird."]


@pytest.fixture(scope="module")
def run_folder(training, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("interop") / "run"
    training.trained(1, out, run__max_steps=2, checkpoint__every=2, schedule__warmup_steps=1)
    return out


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[Hub]:
    with running_hub() as running, pytest.MonkeyPatch.context() as environment:
        environment.setenv("HF_TOKEN", "write")
        # huggingface_hub has read HF_ENDPOINT and HF_HUB_OFFLINE when it was imported.
        environment.setattr(constants, "ENDPOINT", running.url)
        environment.setattr(constants, "HF_HUB_OFFLINE", False)
        yield running


@pytest.fixture(scope="module")
def exported(run_folder: Path, hub: Hub) -> Path:
    """An export with everything, uploaded as me/small."""
    hf = run_folder.parent / "hf"
    flags = ["--onnx", "--sentence_transformers", "--license", "apache-2.0", "--push_to_hub", "me/small", "--private"]
    assert main([str(run_folder), "--output", str(hf), *flags]) == 0
    return hf


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_onnx_runtime_computes_what_torch_does(exported: Path) -> None:
    import onnxruntime  # here, because every worker of xdist imports what stands above

    tokenizer = AutoTokenizer.from_pretrained(exported)
    inputs = tokenizer(TEXTS, TEXTS[::-1], return_tensors="pt", padding=True)
    session = onnxruntime.InferenceSession(str(exported / "onnx/model.onnx"))
    outputs = ["last_hidden_state", "logits", "pair_logits"]
    found = session.run(outputs, {name: values.numpy() for name, values in inputs.items()})

    with torch.inference_mode():
        output = AutoModelForPreTraining.from_pretrained(exported).eval()(**inputs, output_hidden_states=True)
    expected = (output.hidden_states[-1], output.prediction_logits, output.seq_relationship_logits)
    for theirs, ours in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(theirs), ours, atol=1e-5, rtol=1e-5)
    assert b".py" not in (exported / "onnx/model.onnx").read_bytes()  # no places on the machine that wrote it


@pytest.mark.thorough
@pytest.mark.parametrize("family", [*FAMILIES, "electra"])
def test_every_family_becomes_onnx(family: str, tmp_path: Path) -> None:
    model = parts_of(random_model(section(family), SMALL_VOCABULARY))[""]
    assert write_onnx(write_hf(model, SMALL_VOCABULARY, tmp_path), model, SMALL_VOCABULARY) < 1e-5


def test_sentence_transformers_returns_the_mean_of_all_tokens(exported: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(exported), device="cpu")
    assert encoder.max_seq_length == 128
    inputs = AutoTokenizer.from_pretrained(exported)(TEXTS, return_tensors="pt", padding=True)
    with torch.inference_mode():
        states = AutoModel.from_pretrained(exported).eval()(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    means = (states * mask).sum(1) / mask.sum(1)
    torch.testing.assert_close(torch.from_numpy(encoder.encode(TEXTS)), means, atol=1e-5, rtol=1e-5)


def test_the_hub_gets_the_folder_and_keeps_nothing_of_an_earlier_one(
    exported: Path, run_folder: Path, hub: Hub, capsys
) -> None:
    assert hub.repositories == {"me/small": True}
    assert hub.files["me/small"] == files_of(exported) and set(hub.files["me/small"]) >= ADDED
    card = (exported / "README.md").read_text()
    header = 'license: apache-2.0\nlanguage:\n- "en"\n'
    for told in (header, "- sentence-transformers\n- onnx\n", f"torch {torch.__version__}", "| s0 |"):
        assert told in card

    (exported / "notes.txt").write_text("mine")
    assert main([str(run_folder), "--output", str(exported), "--overwrite", "--push_to_hub", "me/small"]) == 0
    assert f"Uploaded to {hub.url}/me/small." in capsys.readouterr().out
    assert not ADDED & set(files_of(exported)) and not (exported / "onnx").exists()
    assert hub.files["me/small"] == {k: v for k, v in files_of(exported).items() if k != "notes.txt"}
    export(str(run_folder), "memory://interop/hf", writing=Writing(repository="me/copy"))
    assert hub.files["me/copy"].keys() == hub.files["me/small"].keys() and not hub.repositories["me/copy"]
    assert hub.commits == 3 and "No license was chosen" in (exported / "README.md").read_text()


@pytest.mark.parametrize(
    ("flags", "token", "told"),
    [
        ("--push_to_hub small", "write", "the owner is missing. Give OWNER/NAME"),
        ("--push_to_hub me/a+b", "write", "must use alphanumeric chars"),
        ("--push_to_hub me/small", "", "Set HF_TOKEN to a token with the right to write there"),
        ("--push_to_hub me/small", "old", "the Hub refuses it ("),
        ("--private", "write", "--private is for --push_to_hub"),
        ("--license Apache", "write", "'Apache' is not an identifier of a license"),
    ],
)
def test_what_the_hub_would_refuse_is_known_before_the_export(
    run_folder: Path, hub: Hub, tmp_path: Path, monkeypatch, capsys, flags: str, token: str, told: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    assert main([str(run_folder), "--output", str(tmp_path / "hf"), *flags.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("clozeline: ") and told in line
    assert not (tmp_path / "hf").exists()


def test_a_model_on_the_hub_is_replaced_only_if_it_is_an_export_and_on_demand(
    exported: Path, run_folder: Path, hub: Hub, tmp_path: Path, capsys
) -> None:
    hub.repositories["me/llama"] = False
    hub.files["me/llama"] = {"config.json": b"{}", "model-00001-of-00002.safetensors": b"", "README.md": b"mine"}
    for name, overwrite, told in (
        ("me/small", [], "an earlier export is there. Add --overwrite"),
        ("me/llama", ["--overwrite"], "a model is there that is no export of ours (config.json"),
    ):
        words = [str(run_folder), "--output", str(tmp_path / "hf"), "--push_to_hub", name, *overwrite]
        assert main(words) == 2 and told in capsys.readouterr().err
    assert len(hub.files["me/llama"]) == 3 and not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    ("flags", "token", "told"),
    [
        ("", "read", "refuses it (You don't have the rights"),
        ("--license my-own", "write", "refuses the card (Invalid metadata"),
    ],
)
def test_what_the_hub_refuses_leaves_the_folder(
    run_folder: Path, hub: Hub, tmp_path: Path, monkeypatch, capsys, flags: str, token: str, told: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    out = tmp_path / "hf"
    words = ["--output", str(out), "--overwrite", "--push_to_hub", "me/small"]
    assert main([str(run_folder), *words, *flags.split()]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert told in line and f"hf upload me/small {out}" in line
    assert (out / "model.safetensors").exists()


def test_a_hub_out_of_reach_is_known_before_the_export(run_folder: Path, hub: Hub, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(StorageError, match="the Hub cannot be reached"):
        export(str(run_folder), str(tmp_path / "hf"), writing=Writing(repository="me/small"))
    assert not (tmp_path / "hf").exists()
