"""An exported folder is the model that was trained, loaded by transformers without code of ours."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

from schemas.vocabulary import read_vocabulary
from trainer.models.packing import PackedBatch
from trainer.models.pretraining import build_model
from trainer.recipe import load_recipe


@pytest.fixture(scope="module")
def trained(run, pairs: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("export") / "run"
    changes = (
        "run.max_steps=4",
        "checkpoint.every=2",
        "schedule.warmup_steps=1",
        f"data.pairs={pairs}",
        f"run.output={out}",
    )
    sets = [part for change in changes for part in ("--set", change)]
    done = run("python", "-m", "trainer", "--config", "trainer/recipes/tiny.toml", *sets)
    assert done.returncode == 0, done.stderr
    return out


def test_logits_of_the_exported_model_equal_ours(run, trained: Path, tmp_path: Path) -> None:
    hf = tmp_path / "hf"
    done = run("python", "-m", "trainer.export", trained, "--output", hf)
    assert done.returncode == 0, done.stderr
    tokenizer = AutoTokenizer.from_pretrained(hf)
    theirs = AutoModelForPreTraining.from_pretrained(hf).eval()
    inputs = tokenizer("The cat sees the [MASK].", "The river follows.", return_tensors="pt")
    ids = inputs["input_ids"][0]
    recipe = load_recipe(str(trained / "recipe.toml"), [])
    ours = build_model(recipe.model, read_vocabulary(str(trained / "vocabulary")).size, 0).eval()
    ours.load_state_dict(load_file(trained / "checkpoints/step-00000004/model.safetensors"))
    everywhere = torch.arange(len(ids))
    batch = PackedBatch(
        ids_T=ids,
        segments_T=inputs["token_type_ids"][0],
        positions_T=everywhere,
        sequence_T=torch.zeros_like(ids),
        first_S=torch.zeros(1, dtype=torch.long),
        longest=len(ids),
        masked_K=everywhere,
        labels_K=ids,
        pair_labels_S=torch.zeros(1, dtype=torch.long),
        tokens=len(ids),
        predicted=len(ids),
        paired=1,
    )
    with torch.inference_mode():
        output, (mlm_KV, pair_S2) = theirs(**inputs), ours.logits(batch)
    torch.testing.assert_close(mlm_KV, output.prediction_logits[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(pair_S2, output.seq_relationship_logits, atol=1e-5, rtol=1e-5)
    for loader in (AutoModel, AutoModelForMaskedLM):
        loader.from_pretrained(hf)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["{trained}", "--step", "2"], 0, "step-00000002"),
        (["{trained}", "--step", "3"], 2, "no checkpoint of step 3. It holds 2, 4."),
        (["{trained}/none"], 2, "holds no checkpoint"),
    ],
)
def test_steps(run, trained: Path, tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    filled = [part.format(trained=trained) for part in arguments]
    done = run("python", "-m", "trainer.export", *filled, "--output", tmp_path / "hf")
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert told in done.stdout + done.stderr
