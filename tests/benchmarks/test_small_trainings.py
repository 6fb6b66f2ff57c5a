"""The benchmarks that train small models: what they compute, against plain loops, and both from text to tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from trainer.config.load import load_recipe
from trainer.export.verify import one_row_batch
from trainer.models.pretraining import PretrainingModel, build_model

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "sena", "##tor", "##s", "met", "in", "ohio", ".", "'"]


@pytest.fixture(autouse=True)
def benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))  # type: ignore[assignment]
    return tokenizer


@pytest.fixture
def model() -> PretrainingModel:
    recipe = load_recipe("tiny", ["model.hidden_size=16", "model.intermediate_size=32", "model.initializer_range=0.5"])
    return build_model(recipe.model, len(TOKENS), seed=0).eval()


@pytest.mark.parametrize("whole_rest", [False, True])
def test_a_loss_per_character_is_that_of_each_token_masked_in_a_row_of_its_own(tokenizer, model, whole_rest) -> None:
    from extend_training import masked_copies  # type: ignore[import-not-found]

    encoding = tokenizer.encode("The senators met in Ohio.")
    assert encoding.tokens[2:5] == ["sena", "##tor", "##s"]

    expected = 0.0
    with torch.inference_mode():
        for place in range(1, len(encoding.ids) - 1):
            ids = torch.tensor(encoding.ids)
            masked = [place]
            if whole_rest and place in (2, 3):
                masked = list(range(place, 5))
            ids[masked] = 4
            logits_TV, _ = model.logits(one_row_batch(ids, 1))
            expected -= float(logits_TV[place].log_softmax(-1)[encoding.ids[place]])

        found = float(model(masked_copies(encoding, 4, whole_rest)).mlm_sum)
    assert found == pytest.approx(expected, rel=1e-5)


def test_words_are_those_after_the_first_with_their_own_first_letter(tokenizer) -> None:
    from objectives import words_after_the_first  # type: ignore[import-not-found]

    sentence = "'The senators met in Ohio."
    encoded = PreTrainedTokenizerFast(tokenizer_object=tokenizer)([sentence])
    found = words_after_the_first(encoded, 0, sentence)
    starts = [sentence.index(word) for word in ("senators", "met", "in", "Ohio")]
    assert found == [(3, starts[0]), (6, starts[1]), (7, starts[2]), (8, starts[3])]


def test_the_probe_finds_a_plane_and_nothing_in_noise() -> None:
    from objectives import ProbedWords, fit_and_measure  # type: ignore[import-not-found]

    torch.manual_seed(0)
    x_ND = torch.randn(4000, 8)
    plane = ProbedWords(x_ND, x_ND[:, 0] + x_ND[:, 1] > 1.5)
    assert fit_and_measure(plane, plane).f1 > 0.97

    # One word in ten is a capital, whatever its vector. Always to answer yes has the best F1, never the best accuracy.
    noise = ProbedWords(x_ND, torch.rand(4000) < 0.1)
    figures = fit_and_measure(noise, noise)
    share_without_capital = float((~noise.is_capital_N).float().mean())
    assert 0.17 < figures.f1 < 0.25
    assert figures.accuracy == pytest.approx(share_without_capital, abs=0.01)


# ---- From text to tables ----


def write_corpus(path: Path, names: list[str], documents: int) -> Path:
    """Write documents of sentences that end with a name."""
    lines = []
    for i in range(documents):
        sentences = [f"On day {j} the members of group {i} met {names[(i + j) % len(names)]}." for j in range(40)]
        lines.append(json.dumps({"text": " ".join(sentences)}))
    path.write_text("\n".join(lines) + "\n")
    return path


def run(program: str, *arguments: object) -> str:
    words = [sys.executable, str(BENCHMARKS / program), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=BENCHMARKS.parent)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pytest.mark.thorough
def test_both_from_text_to_tables(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", ["Anna", "Boris", "the farmers"], 40)
    arguments = [corpus, "--output", tmp_path / "out", "--steps", 6, "--seeds", 2]
    printed = run("objectives.py", *arguments)
    tables = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(tables) == 2 + 2 + 2 + 4
    assert run("objectives.py", *arguments) == printed, "the second time nothing is trained"

    domain = write_corpus(tmp_path / "domain.jsonl", ["lymphocytes", "the erythrocytes"], 20)
    arguments = ["--output", tmp_path / "extended", "--steps", 10, "--seeds", 1, "--add", 2, "--sentences", 5]
    printed = run("extend_training.py", tmp_path / "out" / "hf_bert_0", domain, *arguments)
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith(("| base", "| extended"))]
    names = [(vocabulary, unit) for vocabulary, _, unit, _, _ in rows]
    assert names == [("base", "words"), ("base", "tokens"), ("extended", "words"), ("extended", "tokens")]
    assert int(rows[2][1]) < int(rows[0][1]), "fewer tokens stand for the same text"
    assert all(float(after) < float(before) for *_, before, after in rows), "every loss falls"
