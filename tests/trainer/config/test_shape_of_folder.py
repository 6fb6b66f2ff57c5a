"""A recipe that names no shape takes that of model.init_from, and a run that has begun no longer needs the folder."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import tomli_w

from schemas import storage
from schemas.errors import DataError, UsageError
from schemas.vocabulary import read_vocabulary
from tests.small_models import FAMILIES, SMALL_VOCABULARY, random_model, section, write_hf
from trainer.config.load import load_recipe
from trainer.config.phases import phases_of
from trainer.config.record import dump_recipe
from trainer.describe import describe_recipe
from trainer.export.convert import export
from trainer.models.electra import parts_of
from trainer.models.families import encoder_shape
from trainer.models.hf_load import warm_start_model
from trainer.models.starting_weights import build_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_hf(random_model(section("bert"), SMALL_VOCABULARY), SMALL_VOCABULARY, tmp_path / "bert")


@pytest.mark.parametrize("family", [*FAMILIES, "electra", "xlnet"])
def test_any_family_is_continued(family: str, tmp_path: Path) -> None:
    published = section(family, *(["generator_size=0.333333"] if family == "electra" else []))
    for subfolder, part in parts_of(random_model(published, SMALL_VOCABULARY)).items():
        write_hf(part, SMALL_VOCABULARY, tmp_path / "hf" / subfolder)  # type: ignore[arg-type]
    folder = tmp_path / "hf"
    model = load_recipe("adapt_task", [f"model.init_from={folder}"]).model

    expected = published.model_copy(update={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})
    if family == "xlnet":  # its positions are relative, so its config.json limits nothing
        expected = expected.model_copy(update={"max_position_embeddings": 512})
    size = SMALL_VOCABULARY.size
    assert encoder_shape(model, size) == encoder_shape(expected, size)
    warm_start_model(build_model(model, size, 0, SMALL_VOCABULARY.special_id("mask")), str(folder), SMALL_VOCABULARY)


@pytest.mark.parametrize("theirs", ["xlm-roberta", "camembert"])
def test_families_with_roberta_s_weights_are_continued_as_roberta(xlm_vocab: Path, tmp_path: Path, theirs: str) -> None:
    vocabulary = read_vocabulary(str(xlm_vocab))
    assert vocabulary.separators == 2 and vocabulary.special_ids == (0, 1, 2, 3, vocabulary.size - 1)
    published = random_model(section("roberta"), vocabulary)
    write_hf(published, vocabulary, tmp_path, model_type=theirs)
    model = load_recipe("adapt_task", [f"model.init_from={tmp_path}"]).model
    assert model.family == "roberta"
    fresh = build_model(model, vocabulary.size, 0)
    assert warm_start_model(fresh, str(tmp_path), vocabulary) == []


def test_other_keys_that_a_recipe_names_stay(folder: Path) -> None:
    model = load_recipe("adapt_task", [f"model.init_from={folder}", "model.hidden_dropout_prob=0.3"]).model
    assert (model.family, model.hidden_size, model.hidden_dropout_prob) == ("bert", 48, 0.3)
    assert model.init_from == str(folder)

    named = load_recipe("bert_base", [f"model.init_from={folder}"]).model
    assert named.hidden_size == 768, "a shape that is named is compared with the folder's when its weights are read"
    with pytest.raises(UsageError, match=r"model\.family is missing.*model\.num_hidden_layers is missing"):
        load_recipe("adapt_task", [f"model.init_from={folder}", "model.hidden_size=48"])


def test_it_is_known_to_phases_and_to_describe(folder: Path, pairs: Path, tmp_path: Path) -> None:
    content = tomllib.loads(Path("trainer/recipes/adapt_domain.toml").read_text())
    content["model"]["init_from"] = str(folder)
    content["run"]["max_steps"] = 30
    content["phases"] = [{"steps": 10}, {"steps": 20, "model": {"hidden_dropout_prob": 0.0}}]
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(content))
    recipe = load_recipe(str(tmp_path / "recipe.toml"), [f"data.pairs={pairs}"])
    assert [phase.recipe.model.hidden_dropout_prob for phase in phases_of(recipe)] == [0.1, 0.0]
    assert {phase.recipe.model.hidden_size for phase in phases_of(recipe)} == {48}
    assert describe_recipe(recipe)["family"] == "bert"


@pytest.mark.parametrize("written", ["~/bert/", "file://{home}/bert"])
def test_a_folder_has_one_form_wherever_it_is_written(
    folder: Path, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    model = load_recipe("adapt_task", [f"model.init_from={written.format(home=folder.parent)}"]).model
    assert (model.init_from, model.hidden_size) == (str(folder), 48)


def test_a_run_that_has_begun_does_not_need_the_folder(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    changes = [f"model.init_from={folder}", f"run.output={run}"]
    before = load_recipe("adapt_domain", changes)
    run.mkdir()
    (run / "recipe.toml").write_text(dump_recipe(before))
    shutil.rmtree(folder)

    assert load_recipe("adapt_domain", changes) == before
    assert load_recipe(str(run / "recipe.toml"), []) == before, "as export reads it"
    assert load_recipe("adapt_domain", [*changes, "model.hidden_dropout_prob=0"]).model.hidden_dropout_prob == 0
    with pytest.raises(UsageError, match="is not a Hugging Face folder"):
        load_recipe("adapt_domain", [changes[0], f"run.output={tmp_path / 'another'}"])


def test_a_run_at_a_url_does_not_need_it_either(folder: Path) -> None:
    changes = [f"model.init_from={folder}", "run.output=memory://shapes/run"]
    before = load_recipe("adapt_domain", changes)
    storage.publish("memory://shapes/run/recipe.toml", dump_recipe(before).encode())
    shutil.rmtree(folder)
    assert load_recipe("adapt_domain", changes) == before


def test_a_run_is_trained_resumed_without_the_folder_and_exported(training, vocab: Path, tmp_path: Path) -> None:
    vocabulary = read_vocabulary(str(vocab))
    folder = write_hf(random_model(section("bert"), vocabulary), vocabulary, tmp_path / "hf")
    shutil.copy(vocab / "tokenizer.json", folder)
    changes: dict[str, object] = {"config": "adapt_domain", "model__init_from": folder, "engine__precision": "fp32"}
    changes |= dict.fromkeys(("model__num_hidden_layers", "model__hidden_size", "model__intermediate_size"), "none")
    changes["schedule__warmup_steps"] = 0
    for stop in (1, 2):
        done = training.trained(1, tmp_path / "run", **changes, run__stop_at=stop)
        shutil.rmtree(folder, ignore_errors=True)
    assert "Resuming from" in done.stdout
    export(str(tmp_path / "run"), str(tmp_path / "exported"))
    assert json.loads((tmp_path / "exported/config.json").read_text())["hidden_size"] == 48


def test_what_is_wrong_with_the_folder_is_told_in_one_line(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"^adapt_task: .*model\.family .*--set model\.init_from="):
        load_recipe("adapt_task", [])
    with pytest.raises(UsageError, match="s3://bucket/bert is not a Hugging Face folder"):
        load_recipe("adapt_task", ["model.init_from=s3://bucket/bert"])

    changes = [f"model.init_from={folder}"]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    with pytest.raises(UsageError, match="of the family 'gpt2', which the trainer does not have"):
        load_recipe("adapt_task", changes)
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": "wide"}))
    with pytest.raises(DataError, match="hidden_size must be a whole number above 0, found 'wide'"):
        load_recipe("adapt_task", changes)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", ["bert"], r"of the family \['bert'\]"),
        ("vocab_size", "x", "vocab_size must be a whole number"),
        ("layer_norm_eps", "x", r"config.json: norm_eps"),
    ],
)
def test_a_value_of_its_config_that_is_wrong_is_told_with_the_folder(
    folder: Path, key: str, value: object, message: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    (folder / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises((UsageError, DataError), match=f"{folder}.*{message}"):
        load_recipe("adapt_task", [f"model.init_from={folder}"])


@pytest.mark.parametrize("parameters", [3, [1], {"full_attention": 3}])
def test_rope_parameters_that_are_no_table_are_told(tmp_path: Path, parameters: object) -> None:
    folder = write_hf(random_model(section("modernbert"), SMALL_VOCABULARY), SMALL_VOCABULARY, tmp_path / "modern")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_parameters": parameters}))
    with pytest.raises(DataError, match="rope_parameters must be"):
        load_recipe("adapt_task", [f"model.init_from={folder}"])


@pytest.mark.parametrize(("record", "message"), [("[model", "is damaged"), ("[run]\n", "model is missing")])
def test_a_damaged_record_of_a_run_whose_folder_is_gone_is_told(tmp_path: Path, record: str, message: str) -> None:
    (tmp_path / "recipe.toml").write_text(record)
    changes = [f"model.init_from={tmp_path / 'gone'}", f"run.output={tmp_path}"]
    with pytest.raises((UsageError, DataError), match=f"recipe.toml.*{message}"):
        load_recipe("adapt_domain", changes)


def test_misspelled_names_are_told_before_a_missing_shape(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[modle]\nfamily = 'bert'\n[run]\nmax_stepz = 3\n")
    with pytest.raises(UsageError, match=r"unknown key modle\. Did you mean model\?") as told:
        load_recipe(str(recipe), [])
    assert "run.max_stepz. Did you mean run.max_steps?" in str(told.value)
