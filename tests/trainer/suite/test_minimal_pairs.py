"""Minimal pairs: the likelihood is what its papers say, and folders without one are refused."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from schemas.errors import DataError, UsageError
from tests.trainer.finetune.conftest import write_encoder
from tests.trainer.suite.conftest import minimal_pairs, write_lines
from trainer.suite.frozen_encoder import device_of_job
from trainer.suite.likelihood import log_likelihoods, max_tokens
from trainer.suite.minimal_pairs import main, open_masked_lm, read_pairs
from trainer.suite.probe import open_encoder

SENTENCES = ["The captain remembers the mountain.", "A bookkeeper's unthinkable winter!", "Go."]


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "modernbert"])
@pytest.mark.parametrize("within_words", [True, False])
def test_the_score_is_the_sum_over_masked_tokens(
    family: str, within_words: bool, vocab: Path, byte_vocab: Path, tmp_path: Path
) -> None:
    write_encoder(family, byte_vocab if family == "roberta" else vocab, tmp_path)
    model, tokenizer = open_masked_lm(str(tmp_path), random_weights=True)
    found = log_likelihoods(model, tokenizer, SENTENCES, within_words)
    assert found == pytest.approx([plain_score(model, tokenizer, text, within_words) for text in SENTENCES], rel=1e-4)


def test_a_head_that_does_not_call_its_named_layer_scores_the_same(vocab: Path, tmp_path: Path) -> None:
    write_encoder("bert", vocab, tmp_path)
    tokenizer = open_masked_lm(str(tmp_path), random_weights=True)[1]
    config = transformers.MobileBertConfig(vocab_size=len(tokenizer), num_hidden_layers=2)
    torch.manual_seed(0)
    model = transformers.MobileBertForMaskedLM(config).eval()
    found = log_likelihoods(model, tokenizer, SENTENCES, True)
    assert found == pytest.approx([plain_score(model, tokenizer, text, True) for text in SENTENCES], rel=1e-3)


@torch.inference_mode()
def plain_score(model: torch.nn.Module, tokenizer: object, text: str, within_words: bool) -> float:
    """One token at a time, with all logits."""
    encoding = tokenizer(text)  # type: ignore[operator]
    words = encoding.word_ids(0)
    total = 0.0
    for place, word in enumerate(words):
        if word is None:
            continue
        masked = list(encoding["input_ids"])
        for other in range(place, len(words)):
            if other == place or (within_words and words[other] == word):
                masked[other] = tokenizer.mask_token_id  # type: ignore[attr-defined]
        logits = model(input_ids=torch.tensor([masked])).logits[0, place]
        total += float(logits.log_softmax(-1)[encoding["input_ids"][place]])
    return total


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_a_sentence_that_does_not_fit_is_named(family: str, vocab: Path, byte_vocab: Path, tmp_path: Path) -> None:
    """The longest one that fits is scored, also where the first positions are never used; the next one is an error."""
    write_encoder(family, byte_vocab if family == "roberta" else vocab, tmp_path)
    model, tokenizer = open_masked_lm(str(tmp_path), random_weights=True)
    tokenizer.model_max_length = 10**6
    longest = max_tokens(model.config, tokenizer)
    assert longest == (96 - tokenizer.pad_token_id - 1 if family == "roberta" else 96)

    # Each further dot is one more token.
    dots = longest - len(tokenizer(".")["input_ids"]) + 1
    [score] = log_likelihoods(model, tokenizer, ["." * dots], within_words=False)
    assert score < 0
    with pytest.raises(
        DataError, match=rf"the sentence that begins with '\.+' has {longest + 1} tokens, .* {longest}\."
    ):
        log_likelihoods(model, tokenizer, ["Go.", "." * (dots + 1)], within_words=False)

    tokenizer.model_max_length = 20
    assert max_tokens(model.config, tokenizer) == 20


def test_a_file_with_a_sentence_that_does_not_fit_is_named(
    masked_lm: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs/long.jsonl"
    write_lines(path, [{"sentence_good": "A river " * 80, "sentence_bad": "A garden."}])
    words = [str(masked_lm(0)), "--data", str(tmp_path), "--files", "pairs/*.jsonl", "--output", str(tmp_path / "out")]
    assert main(words, "test") == 3
    error = capsys.readouterr().err
    assert f"{path}: the sentence that begins with 'A river A river" in error
    assert "but the encoder reads at most 96" in error


def test_a_job_computes_where_trainings_do(masked_lm: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """DS_ACCELERATOR=cpu keeps pairs and probes off a GPU that is there, as it does trainings."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    assert device_of_job() == "cuda"

    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert device_of_job() == "cpu"
    model, _ = open_masked_lm(str(masked_lm(0)), random_weights=True)
    assert model.device.type == "cpu"
    assert open_encoder(str(masked_lm(0)), random_weights=True).device.type == "cpu"


def test_other_folders_are_refused(xlnet_vocab: Path, vocab: Path, tmp_path: Path) -> None:
    for family, vocabulary in (("xlnet", xlnet_vocab), ("electra", vocab), ("bert", vocab)):
        write_encoder(family, vocabulary, tmp_path / family)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "bert")
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "bert")

    for family in ("xlnet", "electra", "bert"):
        with pytest.raises(UsageError, match=f"{family} cannot judge minimal pairs: it has no head that predicts"):
            open_masked_lm(str(tmp_path / family), random_weights=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: broken JSON at column 2"),
        ("[1]", r"line 2: \[1\] is not an object"),
        ('{"sentence_good": "A."}', "line 2: sentence_bad is None"),
        ('{"sentence_good": " ", "sentence_bad": "A."}', "line 2: sentence_good is ' '"),
    ],
)
def test_a_wrong_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(f'{{"sentence_good": "A b.", "sentence_bad": "B a."}}\n{line}\n')
    with pytest.raises(DataError, match=message):
        read_pairs(str(path))
    path.write_text("\n")
    with pytest.raises(DataError, match="has no pairs"):
        read_pairs(str(path))


def test_a_file_without_names_is_its_own_paradigm(tmp_path: Path) -> None:
    path = tmp_path / "agreement.jsonl"
    path.write_text('{"sentence_good": "A b.", "sentence_bad": "B a."}\n')
    [pair] = read_pairs(str(path))
    assert (pair.paradigm, pair.phenomenon) == ("agreement", "agreement")


def test_files_are_scored_once(masked_lm: Callable[[int], Path], tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        write_lines(tmp_path / f"pairs/{name}.jsonl", minimal_pairs(6, seed))
    (tmp_path / "pairs/._a.jsonl").write_bytes(b"\xff")
    words = [str(masked_lm(0)), "--data", str(tmp_path), "--files", "pairs/*.jsonl", "--output", str(tmp_path / "out")]
    assert main(words, "test") == 0
    first = json.loads((tmp_path / "out/results.json").read_text())
    assert first["pairs"] == 12 and set(first["paradigms"]) == {"order_0", "order_1"}

    # A pair is right if the acceptable sentence is the likelier one.
    lines = [*minimal_pairs(6, 1), *minimal_pairs(6, 2)]
    good, bad = (
        log_likelihoods(*open_masked_lm(words[0], random_weights=False), [line[key] for line in lines], True)
        for key in ("sentence_good", "sentence_bad")
    )
    assert first["phenomena"]["word order"] == sum(map(operator.gt, good, bad)) / 12

    (tmp_path / "out/files/b.jsonl.json").unlink()
    (tmp_path / "out/results.json").unlink()
    assert main(words, "test") == 0
    second = json.loads((tmp_path / "out/results.json").read_text())
    assert {**first, "seconds": 0} == {**second, "seconds": 0}

    # The scores of another encoder are not kept.
    assert main([str(masked_lm(1)), *words[1:]], "test") == 0
    assert json.loads((tmp_path / "out/results.json").read_text())["encoder"] != first["encoder"]
