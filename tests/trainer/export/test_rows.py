"""An exported tokenizer builds the rows that the model was trained on, for every kind of vocabulary and family."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from schemas.errors import CheckpointError, DataError
from schemas.vocabulary import Vocabulary, read_vocabulary
from tests.conftest import rows
from tests.small_models import random_model, section
from trainer.export.tokenizer import tokenizer_files
from trainer.export.verify import check_exportable, check_rows
from trainer.models.shape import EncoderShape

VOCABULARIES = ("vocab", "byte_vocab", "unigram_vocab", "xlnet_vocab", "albert_vocab", "xlm_vocab")
FAMILIES = ("bert", "roberta", "modernbert", "xlnet")
"""With segments, without them in two spellings of the configuration, and with rows that end with [CLS]."""


class Exported(NamedTuple):
    """A vocabulary, the tokenizer that an export of a model has, and the model's shape."""

    folder: Path
    vocabulary: Vocabulary
    tokenizer: AutoTokenizer
    shape: EncoderShape


def exported(vocabulary_folder: Path, family: str, folder: Path) -> Exported:
    """Return the tokenizer of an export, without the weights."""
    vocabulary = read_vocabulary(str(vocabulary_folder))
    shape = random_model(section(family), vocabulary).shape
    for name, content in tokenizer_files(vocabulary_folder, shape).items():
        (folder / name).write_bytes(content)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return Exported(vocabulary_folder, vocabulary, AutoTokenizer.from_pretrained(folder), shape)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", VOCABULARIES)
def test_rows_are_those_of_training(request, tmp_path: Path, name: str, family: str) -> None:
    found = exported(request.getfixturevalue(name), family, tmp_path)
    check_rows(found.tokenizer, found.folder, found.vocabulary, found.shape)

    own = Tokenizer.from_file(str(found.folder / "tokenizer.json"))
    text = "  It's \t7 caf\u00e9s,\u00a0 na\u00efve\u4f60\u597d! "
    ours = own.encode(text, add_special_tokens=False).ids
    assert found.tokenizer(text, add_special_tokens=False)["input_ids"] == ours


@pytest.mark.parametrize("name", VOCABULARIES[:4])
def test_a_mask_is_glued_to_what_follows_it_without_a_space(request, tmp_path: Path, name: str) -> None:
    tokenizer = exported(request.getfixturevalue(name), "modernbert", tmp_path).tokenizer
    plain = tokenizer("the cat. the cat").input_ids
    separated = tokenizer.tokenize("the cat. the cat")
    place = separated.index(next(token for token in separated if token.endswith("cat"))) + 1
    masked = tokenizer(f"the {tokenizer.mask_token}. the cat").input_ids
    assert masked == [*plain[:place], tokenizer.mask_token_id, *plain[place + 1 :]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}}, "the ids"),
        (
            {"post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}},
            "the segments",
        ),
    ],
)
def test_other_rows_are_an_error_of_the_export(byte_vocab: Path, tmp_path: Path, change: dict, told: str) -> None:
    found = exported(byte_vocab, "bert", tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text()) | change
    rules = content["post_processor"] | {"trim_offsets": True, "add_prefix_space": True}
    if "post_processor" in change:
        content["post_processor"] = rules
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=rf"other rows than the model was trained on.*<mask>.*{told}") as raised:
        check_rows(AutoTokenizer.from_pretrained(tmp_path), found.folder, found.vocabulary, found.shape)
    assert "\n" not in str(raised.value)


def changed(vocabulary_folder: Path, file: str, change: dict[str, Any], folder: Path) -> Path:
    """Return a copy of a vocabulary whose file has other values, as a published tokenizer may."""
    published = Path(shutil.copytree(vocabulary_folder, folder))
    path = published / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | change))
    return published


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(steps)}}


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
MARKS = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
STRIPPED = {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}
DIGITS = {"type": "Digits", "individual_digits": True}
CUT = {"truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}}
PADDED = {
    "padding": {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 1,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
}
MASK_KEEPS_SPACE = {"content": "<mask>", "lstrip": False, "rstrip": False, "normalized": False, "special": True}


@pytest.mark.parametrize(
    ("name", "file", "change"),
    [
        ("byte_vocab", "tokenizer.json", CUT | PADDED),
        ("vocab", "tokenizer.json", CUT | PADDED),
        ("byte_vocab", "tokenizer.json", {"pre_tokenizer": BYTES | {"add_prefix_space": False}}),
        ("byte_vocab", "tokenizer_config.json", {"added_tokens_decoder": {"4": MASK_KEEPS_SPACE}}),
    ],
)
def test_published_tokenizers_that_can_be_exported(
    request, tmp_path: Path, name: str, file: str, change: dict[str, Any]
) -> None:
    published = changed(request.getfixturevalue(name), file, change, tmp_path / "vocabulary")
    (tmp_path / "hf").mkdir()
    found = exported(published, "bert", tmp_path / "hf")
    check_exportable(str(tmp_path), found.vocabulary, found.shape)
    check_rows(found.tokenizer, found.folder, found.vocabulary, found.shape)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("byte_vocab", sequence({"type": "Whitespace"}, BYTES)),
        ("byte_vocab", STRIPPED),
        ("unigram_vocab", sequence(MARKS, DIGITS)),
        (
            "unigram_vocab",
            sequence({"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}, MARKS),
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_exported_is_known_from_its_file(
    request, tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    published = changed(request.getfixturevalue(name), "tokenizer.json", change, tmp_path / "vocabulary")
    vocabulary = read_vocabulary(str(published))
    shape = random_model(section("bert"), vocabulary).shape
    with pytest.raises(DataError, match=r"an export of the model could not have: of .*, expected .*clozeline vocab"):
        check_exportable(str(tmp_path), vocabulary, shape)


def test_a_tokenizer_that_the_library_cannot_read_is_named(vocab: Path, tmp_path: Path) -> None:
    damaged = changed(vocab, "tokenizer.json", {"version": "!.0"}, tmp_path / "vocabulary")
    vocabulary = read_vocabulary(str(damaged))
    with pytest.raises(DataError, match=r"vocabulary/tokenizer.json: the tokenizers library cannot read it \(Unknown"):
        check_exportable(str(tmp_path), vocabulary, random_model(section("bert"), vocabulary).shape)


def test_training_on_its_rows_is_refused_before_the_first_step(
    training, command, text: Path, byte_vocab: Path, tmp_path: Path
) -> None:
    published = changed(byte_vocab, "tokenizer.json", STRIPPED, tmp_path / "published")
    pairs = rows(command, "stripped", text, published, "full_sentences")
    done = training.warm(1, tmp_path / "run", data__pairs=pairs, model__family="roberta")
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith(f"clozeline: {pairs} was made with a tokenizer that an export of the model could not")
    assert "\n" not in done.stderr.strip()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
