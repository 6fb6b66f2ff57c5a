"""A run of ELECTRA as a user starts it: killed and resumed on other ranks, evaluated, and exported in two parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer, pipeline

from schemas.masking import KINDS
from schemas.vocabulary import read_vocabulary
from tests.trainer.conftest import logged
from trainer.checkpoint.format import checkpoint_path
from trainer.config.load import load_recipe
from trainer.data.folder import open_folders
from trainer.data.share import RankShare
from trainer.evaluate import open_evaluation
from trainer.export.convert import export, read_model
from trainer.export.request import Writing
from trainer.export.verify import one_row_batch
from trainer.metrics.log import is_evaluation
from trainer.models.electra import parts_of
from trainer.models.pretraining import SUMS

STEPS = 50
ELECTRA = {
    "model__family": "electra",
    "model__embedding_size": 16,
    "model__generator_size": 0.5,
    "model__hidden_dropout_prob": 0.0,
    "model__attention_probs_dropout_prob": 0.0,
    "batch__global_batch": 12,
    "batch__micro_batch": 2,
    "run__max_steps": STEPS,
    "checkpoint__every": 10,
    "evaluation__every": 50,
    "evaluation__all_kinds": "true",
}
COMPUTED = ("loss", "mlm_loss", "mlm_accuracy", "rtd_loss", "rtd_accuracy", "replaced_fraction", "tokens")


@pytest.fixture(scope="module")
def unbroken(training, held_out: Path, tmp_path_factory) -> Path:
    """On one rank, with held-out pairs."""
    out = tmp_path_factory.mktemp("electra") / "run"
    training.trained(1, out, **ELECTRA, evaluation__pairs=held_out, engine__zero_stage=0)
    return out


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [line for line in logged(run) if not is_evaluation(line)]


def test_both_losses_are_learned_and_logged(unbroken: Path) -> None:
    lines = steps_of(unbroken)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line in lines:
        assert line["loss"] == pytest.approx(line["mlm_loss"] + 50 * line["rtd_loss"], rel=1e-9)
        assert line["pair_loss"] is None and line["pair_accuracy"] is None
        assert 0 < line["replaced_fraction"] < 0.4  # of short rows, of which one token is masked at least
    assert lines[-1]["mlm_loss"] < 0.95 * lines[0]["mlm_loss"] and lines[-1]["rtd_loss"] < 0.8 * lines[0]["rtd_loss"]

    report = (unbroken / "report.html").read_text()
    assert "Loss of replaced-token detection" in report and "replaced tokens, held out" in report


def test_ranks_that_share_every_weight_learn_the_same(training, unbroken: Path, tmp_path: Path) -> None:
    """ZeRO 3, in which two encoders have one table of embeddings."""
    training.trained(2, tmp_path / "run", **ELECTRA, engine__zero_stage=3, run__stop_at=3)
    for line, expected in zip(logged(tmp_path / "run"), logged(unbroken)[:3], strict=True):
        assert [line[name] for name in COMPUTED] == pytest.approx([expected[name] for name in COMPUTED], rel=2e-5)


@pytest.mark.parametrize("ranks", [1, 3])
def test_held_out_figures_of_both_parts(unbroken: Path, ranks: int) -> None:
    """Against sums over all batches, however many ranks share them."""
    recipe = load_recipe(str(unbroken / "recipe.toml"), [])
    vocabulary = read_vocabulary(str(unbroken / "vocabulary"))
    model = read_model(checkpoint_path(str(unbroken), STEPS), recipe, vocabulary)
    sums = torch.zeros(SUMS, dtype=torch.float64)
    masked = tokens = 0
    for rank in range(ranks):
        evaluation = open_evaluation(recipe, open_folders(recipe), RankShare(rank, ranks, 2, recipe.batch.size))
        assert evaluation is not None
        for kind, batches in evaluation.batches():
            for batch in batches if kind == "token" else []:
                with torch.inference_mode():
                    sums += model(batch).stacked()
                masked += batch.predicted
                tokens += batch.tokens
        evaluation.close()

    line = logged(unbroken)[-1]
    found = [line[f"eval_{name}"] for name in ("mlm_loss", "rtd_loss", "rtd_accuracy", "replaced_fraction")]
    expected = [sums[0] / masked, *(sums[4:7] / tokens)]
    assert found == pytest.approx([float(value) for value in expected], rel=1e-4)
    assert {f"eval_{kind}_mlm_loss" for kind in KINDS} <= line.keys() and line["eval_pair_loss"] is None


def test_an_export_has_two_models(unbroken: Path, tmp_path: Path) -> None:
    """Each loads by its Auto class with all its tensors and no others, and computes what the trainer's part does."""
    hf = tmp_path / "hf"
    assert "(checked, to " in export(str(unbroken), str(hf), None)
    recipe = load_recipe(str(unbroken / "recipe.toml"), [])
    vocabulary = read_vocabulary(str(unbroken / "vocabulary"))
    parts = parts_of(read_model(checkpoint_path(str(unbroken), STEPS), recipe, vocabulary))
    discriminator, generator = parts.values()

    theirs = loaded(AutoModelForPreTraining, hf)
    filler = loaded(AutoModelForMaskedLM, hf / "generator")
    assert type(theirs).__name__ == "ElectraForPreTraining" and type(filler).__name__ == "ElectraForMaskedLM"
    _, told = AutoModel.from_pretrained(hf, output_loading_info=True)
    assert not told["missing_keys"] and not told["mismatched_keys"]

    tokenizer = AutoTokenizer.from_pretrained(hf / "generator")
    text = f"The cat sees the {tokenizer.mask_token}."
    inputs = tokenizer(text, return_tensors="pt")
    batch = one_row_batch(inputs["input_ids"][0], 1)
    with torch.inference_mode():
        torch.testing.assert_close(discriminator.logits(batch)[0], theirs(**inputs).logits[0])
        logits_TV = filler(**inputs).logits[0]
        torch.testing.assert_close(generator.logits(batch)[0], logits_TV)

    best = pipeline("fill-mask", model=filler, tokenizer=tokenizer, top_k=1)(text)[0]
    place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    assert best["token"] == int(logits_TV[place].argmax())
    card = (hf / "README.md").read_text()
    assert "subfolder `generator`" in card and "fill-mask" not in card and "fills in" not in card
    assert "| accuracy of replaced-token detection |" in card


def loaded(auto_class: Any, folder: Path) -> Any:
    model, told = auto_class.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    return model.eval()


def test_a_generator_goes_with_the_export_it_belongs_to(unbroken: Path, straight: Path, tmp_path: Path) -> None:
    """An export of another family over one of ELECTRA removes all of its generator, and nothing else."""
    hf = tmp_path / "hf"
    export(str(unbroken), str(hf), None)
    first = {path.relative_to(hf) for path in hf.rglob("*")}
    export(str(unbroken), str(hf), None, writing=Writing(overwrite=True))
    assert {path.relative_to(hf) for path in hf.rglob("*")} == first and Path("generator/config.json") in first

    note = hf / "generator" / "note.txt"
    note.write_text("kept")
    export(str(straight), str(hf), None, writing=Writing(overwrite=True))
    assert list((hf / "generator").iterdir()) == [note]


def test_a_run_begins_with_both_parts_of_an_export(training, unbroken: Path, tmp_path: Path) -> None:
    """Its held-out figures before any learning are those of the run that was exported."""
    hf = tmp_path / "hf"
    export(str(unbroken), str(hf), None)
    recipe = load_recipe(str(unbroken / "recipe.toml"), [])
    changes = ELECTRA | {"run__max_steps": 1, "schedule__warmup_steps": 0, "optimizer__lr": 1e-12}
    changes |= {"evaluation__pairs": recipe.evaluation.pairs, "evaluation__every": 10, "model__init_from": hf}
    done = training.warm(1, tmp_path / "again", **changes)
    assert done.returncode == 0 and f"Beginning with the weights of {hf}." in done.stdout + done.stderr, done.stderr

    last, again = logged(unbroken)[-1], logged(tmp_path / "again")[-1]
    names = [name for name in last if name.startswith("eval_") and last[name] is not None]
    names.remove("eval_seconds")
    assert [again[name] for name in names] == pytest.approx([last[name] for name in names], rel=1e-4)
