"""From a folder that transformers wrote, its own vocabulary and weights, to pairs and a run that goes on from it."""

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    AutoTokenizer,
    BertConfig,
    BertForPreTraining,
    BertTokenizerFast,
)

from schemas.errors import DataError
from schemas.vocabulary import read_vocabulary
from tests.conftest import rows
from trainer.export.convert import export

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "layer_norm_eps": 1e-12,
}


@pytest.fixture(params=["bert", "albert"])
def published(request: pytest.FixtureRequest, vocab: Path, albert_vocab: Path, tmp_path: Path) -> Path:
    """A small BERT or ALBERT with random weights, all written by transformers."""
    folder = tmp_path / request.param
    if request.param == "bert":
        tokenizer = BertTokenizerFast(vocab=str(vocab / "vocab.txt"), do_lower_case=True)
        BertForPreTraining(BertConfig(vocab_size=len(tokenizer), **SMALL)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder
    size = read_vocabulary(str(albert_vocab)).size
    AlbertForPreTraining(AlbertConfig(vocab_size=size, embedding_size=16, **SMALL)).save_pretrained(folder)
    for path in albert_vocab.iterdir():
        shutil.copy(path, folder)
    return folder


def test_a_run_goes_on_from_a_published_folder(command, training, text: Path, published: Path, tmp_path: Path) -> None:
    """And its export is read again, its tokenizer too."""
    family = published.name
    objective = {"bert": "nsp", "albert": "sop"}[family]
    pairs = rows(command, f"{family}_published", text, published, objective)
    copied = {path.name for path in (pairs / "vocabulary").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json"} <= copied and "model.safetensors" not in copied
    assert read_vocabulary(str(pairs / "vocabulary")) == read_vocabulary(str(published))
    begun: dict[str, object] = {"data__pairs": pairs, "model__init_from": published, "run__stop_at": 1}
    begun["model__num_hidden_layers"] = 2
    if family == "albert":
        begun |= {"model__family": "albert", "model__embedding_size": 16}
    done = training.trained(1, tmp_path / "run", **begun)
    assert f"Beginning with the weights of {published}." in done.stdout
    assert "checked, to" in export(str(tmp_path / "run"), str(tmp_path / "hf"), None)
    exported = AutoTokenizer.from_pretrained(tmp_path / "hf")("The cat.")
    original = AutoTokenizer.from_pretrained(published)("The cat.")
    assert {name: exported[name] for name in original} == dict(original)
    assert set(exported) == {"input_ids", "token_type_ids", "attention_mask"}, "both families have segments"


def test_other_rules_are_refused(command, text: Path, vocab: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(vocab / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    flags = ("--text", text, "--vocab", tmp_path, "--output", tmp_path / "pairs", "--objective", "nsp")
    done = command("pairs", *flags)
    assert done.returncode == DataError.exit_code
    assert 'cuts "It\'s" into' in done.stderr and "BERT's words" in done.stderr
