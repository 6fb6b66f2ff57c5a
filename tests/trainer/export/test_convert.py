"""An exported folder is the model that was trained, loaded by transformers without code of ours; every family.

The bytes of a single file are those of the safetensors library, and several files are cut as transformers cuts them.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from schemas.errors import CheckpointError
from schemas.vocabulary import read_vocabulary
from tests.conftest import rows
from tests.small_models import FAMILIES, auto_class, section
from tests.trainer.conftest import logged
from trainer.checkpoint import format as checkpoints
from trainer.config.load import load_recipe
from trainer.export import verify as export_check
from trainer.export.cli import main
from trainer.export.convert import export, read_model, write_weights
from trainer.export.model_card import last_metrics, model_card
from trainer.export.request import Writing
from trainer.models.hf_names import constant_tensors, to_hf
from trainer.models.starting_weights import build_model

POSITIONS = 40
SHORT = {"run__max_steps": 4, "checkpoint__every": 2, "run__log_every": 2, "schedule__warmup_steps": 1}


@pytest.fixture(scope="module")
def trained(training, command, text, pairs, byte_rows, albert_vocab, tmp_path_factory) -> dict[str, Path]:
    """A run of four steps of each family; ALBERT's has a published tokenizer."""
    runs = {family: tmp_path_factory.mktemp("export") / family for family in FAMILIES}
    published = rows(command, "published_rows", text, albert_vocab, "sop")
    data = dict.fromkeys(FAMILIES, pairs) | {"roberta": byte_rows, "albert": published}
    for family, out in runs.items():
        changes = {"model__family": family, "model__hidden_size": 64, "data__pairs": data[family]}
        changes |= {"model__embedding_size": 32} if family == "albert" else {}
        changes |= {"model__max_position_embeddings": POSITIONS, "model__num_hidden_layers": 2}  # in their order
        training.trained(1, out, **SHORT, **changes)
    return runs


@pytest.fixture(scope="module")
def exported(trained: dict[str, Path]) -> dict[str, Path]:
    """The export of each run."""
    folders = {family: run.parent / "hf" for family, run in trained.items()}
    for family, hf in folders.items():
        assert "(checked, to " in export(str(trained[family]), str(hf), None)
    return folders


@pytest.mark.parametrize("family", FAMILIES)
def test_the_exported_model_is_ours_and_fills_blanks(trained, exported, family: str) -> None:
    out, hf = trained[family], exported[family]
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= {path.name for path in hf.iterdir()}
    vocabulary = read_vocabulary(str(out / "vocabulary"))
    recipe = load_recipe(str(out / "recipe.toml"), [])
    ours = read_model(checkpoints.checkpoint_path(str(out), 4), recipe, vocabulary)

    tokenizer = AutoTokenizer.from_pretrained(hf)
    theirs = auto_class(family).from_pretrained(hf).eval()
    text = f"The cat sees the {tokenizer.mask_token}."
    inputs = tokenizer(text, return_tensors="pt")
    batch = export_check.one_row_batch(inputs["input_ids"][0], 1)
    with torch.inference_mode():
        logits = theirs(**inputs).to_tuple()[0][0]
        torch.testing.assert_close(ours.logits(batch)[0], logits, atol=1e-5, rtol=1e-5)
    for loader in (AutoModel, AutoModelForMaskedLM):
        _, told = loader.from_pretrained(hf, output_loading_info=True)
        # Families without pair labels were published without a pooler, too.
        missing = {name for name in told["missing_keys"] if ours.shape.pair_head or "pooler" not in name}
        assert not missing and not told["mismatched_keys"]
    masked = AutoModelForMaskedLM.from_pretrained(hf)
    best = pipeline("fill-mask", model=masked, tokenizer=tokenizer, top_k=1)(text)[0]
    place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    assert best["token"] == int(logits[place].argmax())


@pytest.mark.parametrize("family", FAMILIES)
def test_long_text_is_truncated_to_what_the_model_takes(exported, family: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(exported[family])
    model = auto_class(family).from_pretrained(exported[family]).eval()
    inputs = tokenizer("the river " * 400, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape == (1, POSITIONS)
    with torch.inference_mode():
        assert model(**inputs).to_tuple()[0].isfinite().all()


def test_modernbert_classifies_by_the_mean_of_all_tokens(exported) -> None:
    """As with the published checkpoints. transformers' default reads [CLS], which masked LM does not train."""
    model = AutoModelForSequenceClassification.from_pretrained(exported["modernbert"]).eval()
    input_ids = torch.tensor([[2, 8, 9, 10, 3, 0, 0], [2, 11, 12, 13, 14, 15, 3]])
    attention_mask = (input_ids != 0).long()

    with torch.inference_mode():
        states = model.model(input_ids, attention_mask).last_hidden_state
        means = torch.stack([states[0, :5].mean(0), states[1].mean(0)])
        expected = model.classifier(model.head(means))
        torch.testing.assert_close(model(input_ids, attention_mask).logits, expected)


def test_the_card_tells_data_metrics_and_recipe(trained, tmp_path: Path, pairs: Path) -> None:
    export(str(trained["bert"]), str(tmp_path / "hf"), 2)
    card = (tmp_path / "hf" / "README.md").read_text()
    fingerprint = json.loads((pairs / "manifest.json").read_text())["fingerprint"]
    for told in (
        "2 of 4 steps",
        f"`{fingerprint}`",
        "| at step 2 |",
        "| masked LM loss |",
        "# English masked language model, BERT, 2 layers of 64\n",
        " steps on ",
        " parameters.\n",
        f'from_pretrained("{tmp_path.name}/hf")  # this folder, or its name on the Hub\n',
        "- All that it knows is from ",
        "in this one, so the model may repeat both.\n",
        "- Capital letters become small, and accents are dropped.\n",
        "BertForPreTraining",
        "hidden_size = 64",
        "| source | documents |\n|---|---|\n| s0 |",
    ):
        assert told in card
    assert str(pairs) not in card and str(tmp_path.parent) not in card


def test_the_card_names_the_origin_and_the_data_of_all_phases(trained, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained["bert"], tmp_path / "run"))
    recipe = load_recipe(str(run / "recipe.toml"), ["model.init_from=/home/me/minilm/"])
    (checkpoint,) = run.glob("checkpoints/*4")
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").write_text(
        json.dumps(state | {"earlier_data": ["ab" * 16, *state["identity"]["data"]]})
    )

    card = model_card(str(run), recipe, [4])
    assert "It began with the weights of `minilm`." in card and "/home/me" not in card
    rows = [line for line in card.splitlines() if line.startswith("| pairs |")]
    assert rows == [f"| pairs | `{fingerprint}` |" for fingerprint in ("ab" * 16, *state["identity"]["data"])]


def test_the_card_names_the_corpora_and_their_licenses(trained, tmp_path: Path, pairs: Path) -> None:
    """From the run alone: the pairs and their text may be gone. What others wrote there stays in its cell."""
    run = Path(shutil.copytree(trained["bert"], tmp_path / "run"))
    of_pairs = json.loads((pairs / "manifest.json").read_text())
    facts = json.loads((run / "text_facts.json").read_text())
    assert facts == {of_pairs["fingerprint"]: of_pairs["statistics"]["text"]}

    corpora = [
        {"name": "wiki", "license": "CC BY-SA 4.0", "url": "https://w.org", "date": "2024-05-01", "documents": 3456},
        {"name": "a|b\n# <b>", "documents": 7},
    ]
    facts[of_pairs["fingerprint"]]["corpora"] = corpora
    (run / "text_facts.json").write_text(json.dumps(facts))
    export(str(run), str(tmp_path / "hf"), 4)
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "| corpus | license | from | date | documents |\n|---|---|---|---|---|\n" in card
    assert "| wiki | CC BY-SA 4.0 | https://w.org | 2024-05-01 | 3,456 |\n" in card
    assert "| a\\|b # &lt;b&gt; | not stated |  |  | 7 |\n" in card

    # A damaged file, and a run of before it was written: the card says less.
    for change in ((run / "text_facts.json").write_text, lambda _: (run / "text_facts.json").unlink()):
        change('{"a": [')
        export(str(run), str(tmp_path / "hf"), 4, writing=Writing(overwrite=True))
        card = (tmp_path / "hf" / "README.md").read_text()
        assert "## Data\n\n| | fingerprint |" in card and "documents" not in card


def test_the_card_has_the_last_evaluation_up_to_its_step(trained, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained["bert"], tmp_path / "run"))
    assert last_metrics(str(run), 4).held_out == {}
    start = json.loads((run / "starts.jsonl").read_text())
    held_out = {"held_out_rows": 1234, "held_out_documents": 56, "machine": "Lovelace 1"}
    (run / "starts.jsonl").write_text(json.dumps(start | held_out))
    (run / "blanks.json").write_text(
        '{"step": 4, "filled": [["Frequencies:", "a 9%"], ["The ____ | sees.", "cat 99%"]]}'
    )

    lines = logged(run)
    for line in lines:
        line |= {"eval_mlm_loss": 7.0 - line["step"], "eval_pair_loss": None, "eval_seconds": 1.0}
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = last_metrics(str(run), 3)
    assert found.step == found.evaluated == 2
    assert found.held_out == {"masked LM loss": "5.000"}

    export(str(run), str(tmp_path / "hf"), 4)
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "## On held-out pairs\n\nFrom 56 documents in 1,234 rows that were not trained on.\n\n" in card
    assert "| at step 4 | |\n|---|---|\n| masked LM loss | 3.000 |\n" in card
    assert (
        "on 1 rank, Lovelace 1.\n" in card and "| The \\_\\_\\_\\_ \\| sees. | cat 99% |\n\nFrequencies: a 9%\n" in card
    )
    assert "parentheses" not in card, "no word is known"
    to_the_hub = model_card(str(run), load_recipe(str(run / "recipe.toml"), []), [4], writing=Writing(repository="a/b"))
    assert 'from_pretrained("a/b")\n' in to_the_hub and "sees" not in to_the_hub


def test_a_folder_that_computes_something_else_is_not_published(trained, tmp_path: Path, monkeypatch) -> None:
    """A limit of nothing at all stands in for a fault: rounding alone is then too much."""
    before = {path.name for path in tmp_path.iterdir()}
    monkeypatch.setattr(export_check, "LARGEST_DIFFERENCE", 0.0)
    with pytest.raises(CheckpointError, match=r"logits differ from ours by .* Nothing was published"):
        export(str(trained["albert"]), str(tmp_path / "hf"), None)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_an_export_in_several_files_is_the_same_model(trained, exported, tmp_path: Path) -> None:
    """Loaded without a missing or unexpected tensor; --overwrite then leaves one file and no trace of the others."""
    whole, cut = exported["albert"], tmp_path / "cut"
    assert "(checked, to " in export(str(trained["albert"]), str(cut), None, writing=Writing(max_shard_bytes=30_000))
    files = sorted(file.name for file in cut.glob("model*"))
    assert len(files) > 3 and "model.safetensors.index.json" in files and "model.safetensors" not in files

    one, told = AutoModelForPreTraining.from_pretrained(cut, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]
    other = AutoModelForPreTraining.from_pretrained(whole)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))

    export(str(trained["albert"]), str(cut), None, writing=Writing(overwrite=True))
    assert {file.name for file in cut.iterdir()} == {file.name for file in whole.iterdir()}


@pytest.mark.parametrize("size", ["0", "-1", "nan", "much"])
def test_a_size_of_files_that_is_none_is_refused(trained, tmp_path: Path, capsys, size: str) -> None:
    code = main([str(trained["bert"]), "--output", str(tmp_path / "hf"), "--max_shard_gigabytes", size])
    assert code == 2 and "--max_shard_gigabytes" in capsys.readouterr().err and not (tmp_path / "hf").exists()


def two_layers_exchanged(hf: Path) -> None:
    """One weight is that of another layer, of the same shape."""
    weights = load_file(hf / "model.safetensors")
    a, b = (f"bert.encoder.layer.{i}.attention.self.query.weight" for i in (0, 1))
    save_file(weights | {a: weights[b], b: weights[a]}, hf / "model.safetensors", {"format": "pt"})


def another_mask(hf: Path) -> None:
    """ESM scales a row's embeddings by its share of masks, which only rows with a mask show."""
    config = json.loads((hf / "config.json").read_text())
    (hf / "config.json").write_text(json.dumps(config | {"mask_token_id": config["mask_token_id"] + 1}))


@pytest.mark.parametrize(("family", "damage"), [("bert", two_layers_exchanged), ("esm", another_mask)])
def test_a_damaged_export_is_found(trained, exported, tmp_path: Path, family: str, damage) -> None:
    out = trained[family]
    hf = Path(shutil.copytree(exported[family], tmp_path / "hf"))
    damage(hf)
    vocabulary = read_vocabulary(str(out / "vocabulary"))
    recipe = load_recipe(str(out / "recipe.toml"), [])
    model = read_model(checkpoints.checkpoint_path(str(out), 4), recipe, vocabulary)
    with pytest.raises(CheckpointError, match="logits differ"):
        export_check.check_export(hf, model, vocabulary, out / "vocabulary")


def test_one_step_of_several_by_the_command(run, trained, tmp_path: Path) -> None:
    done = run("python", "-m", "trainer.export", trained["bert"], "--step", "2", "--output", tmp_path / "hf")
    assert done.returncode == 0 and "step-00000002" in done.stdout, done.stderr
    assert "Loading weights" not in done.stderr, "transformers' progress bar"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{trained}", "--step", "3"], "no checkpoint of step 3. It holds 2, 4."),
        (["{trained}/none"], "/none does not exist. Check the path, the run.output of a training."),
        (["{trained}/tensorboard"], "holds no checkpoint"),
    ],
)
def test_what_is_not_there_is_a_usage_error(trained, tmp_path: Path, capsys, arguments: list[str], told: str) -> None:
    filled = [part.format(trained=trained["bert"]) for part in arguments]
    assert main([*filled, "--output", str(tmp_path / "hf")]) == 2
    assert told in capsys.readouterr().err


# Files of weights


@pytest.fixture(params=FAMILIES)
def tensors(request: pytest.FixtureRequest) -> dict[str, Tensor]:
    """The weights of a model under transformers' names."""
    model = build_model(section(request.param), 61, seed=3)
    ours = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return to_hf(ours, model.shape) | constant_tensors(model.shape)


def test_several_files_hold_every_tensor_once(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    """Each as full as it can be in the model's order, although query, key and value share the memory of one tensor."""
    write_weights(tensors, tmp_path, 20_000)

    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(file.name for file in tmp_path.glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    found: dict[str, Tensor] = {}
    for file in files:
        of_file = load_file(tmp_path / file)
        assert not found.keys() & of_file.keys()
        assert all(index["weight_map"][name] == file for name in of_file)
        assert len(of_file) == 1 or sum(4 * values.numel() for values in of_file.values()) <= 20_000
        found |= of_file
    assert found.keys() == tensors.keys() == index["weight_map"].keys()
    assert all(torch.equal(found[name], values) for name, values in tensors.items())
    assert index["metadata"]["total_size"] == sum(4 * values.numel() for values in tensors.values())
