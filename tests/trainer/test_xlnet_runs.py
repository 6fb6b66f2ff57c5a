"""XLNet under its real launchers: it learns, resumes on other ranks, and leaves a folder that transformers opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from schemas.masking import Masking
from schemas.vocabulary import read_vocabulary
from tests.conftest import Command, rows
from tests.trainer.conftest import logged
from trainer.build_model import warn_of_vocabulary
from trainer.config.load import load_recipe
from trainer.data.folder import PairFolder
from trainer.data.order import build_sources
from trainer.data.share import RankShare
from trainer.data.stream import MaskingSchedule, Stream

XLNET = {
    "model__family": "xlnet",
    "model__hidden_dropout_prob": 0.0,  # dropout is drawn per rank
    "model__attention_probs_dropout_prob": 0.0,
    "masking__kind": "ngram",
    "masking__prob": 0.1667,
}


@pytest.fixture(scope="module")
def learned(training, held_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 60 steps on one rank, evaluated at the beginning and at the end."""
    out = tmp_path_factory.mktemp("xlnet") / "run"
    evaluated = {"evaluation__pairs": held_out, "evaluation__every": 20, "checkpoint__every": 20}
    evaluated |= {"evaluation__batches": 3, "evaluation__all_kinds": "true"}
    changes = {"model__num_hidden_layers": 2, "batch__micro_batch": 16, "run__max_steps": 60, "run__log_every": 20}
    done = training.trained(1, out, **XLNET, **evaluated, **changes)
    assert "are not predicted: xlnet has no pair head." in done.stdout + done.stderr
    assert done.stdout.count("has a wordpiece vocabulary without XLNet's special tokens") == 1
    return out


def test_the_held_out_loss_falls(learned: Path) -> None:
    """Of fixed orders, with every kind of target; pair labels have no figures."""
    evaluated = {line["step"]: line for line in logged(learned) if "eval_mlm_loss" in line}
    print({step: round(line["eval_mlm_loss"], 3) for step, line in evaluated.items()})
    assert evaluated[60]["eval_mlm_loss"] < evaluated[20]["eval_mlm_loss"] - 0.3
    for kind in ("token", "whole_word", "ngram", "span"):
        assert evaluated[60][f"eval_{kind}_mlm_loss"] < evaluated[20][f"eval_{kind}_mlm_loss"]
    assert evaluated[60]["eval_pair_loss"] is None


def test_the_export_is_an_xlnet_folder(learned: Path, run, tmp_path: Path) -> None:
    """No tensor is missing or left over, and the tokenizer makes the rows that the model was trained on."""
    done = run("python", "-m", "trainer.export", learned, "--output", tmp_path / "hf")
    assert done.returncode == 0, done.stderr
    assert "Load it with transformers' AutoModelForCausalLM" in done.stdout + done.stderr
    for auto_class in (transformers.AutoModelForCausalLM, transformers.AutoModelForPreTraining):
        loader: Any = auto_class
        model, loading = loader.from_pretrained(tmp_path / "hf", output_loading_info=True)
        assert type(model).__name__ == "XLNetLMHeadModel" and not any(loading.values()), loading
    assert (
        model.config.mem_len is None
        and not model.config.use_mems_train
        and model.lm_loss.weight is (model.transformer.word_embedding.weight)
    )

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    both = tokenizer(["the cat", "the dog sees the cat"], ["a river", "a bridge"], padding=True)
    first = tokenizer.convert_ids_to_tokens(both["input_ids"][0])
    padding = first.count("[PAD]")
    assert padding > 0 and first[:padding] == ["[PAD]"] * padding, "filled on the left"
    assert first[-1] == "[CLS]" and first[-2] == "[SEP]" and first.count("[SEP]") == 2 and first.count("[CLS]") == 1
    middle = first.index("[SEP]")
    expected = [0] * (middle + 1 - padding) + [1] * (len(first) - middle - 2) + [2]
    assert both["token_type_ids"][0][padding:] == expected
    assert tokenizer.convert_ids_to_tokens(tokenizer("the cat")["input_ids"])[-2:] == ["[SEP]", "[CLS]"]
    assert "pipeline_tag: text-generation" in (tmp_path / "hf/README.md").read_text()


def test_a_vocabulary_that_is_not_xlnet_s_is_warned_of(vocab: Path, xlnet_vocab: Path, capsys) -> None:
    warned = {}
    for family in ("xlnet", "bert"):
        recipe = load_recipe("tests/recipes/small_bert.toml", [f"model.family={family}"])
        for folder in (vocab, xlnet_vocab):
            warn_of_vocabulary(recipe, read_vocabulary(str(folder)), "out/pairs")
            warned[family, folder] = capsys.readouterr().out
    message = warned.pop(("xlnet", vocab))
    assert message.startswith("out/pairs has a wordpiece vocabulary without XLNet's special tokens")
    assert "`clozeline vocab --model unigram --special_tokens xlnet`" in message
    assert set(warned.values()) == {""}


@pytest.mark.parametrize("objective", ["nsp", "sop", "full_sentences"])
def test_rows_of_every_objective_are_read_in_xlnet_s_layout(
    command: Command, text: Path, vocab: Path, objective
) -> None:
    """What follows [CLS] in a shard precedes it here; SOP's order is redrawn before that."""
    path = rows(command, f"xlnet_{objective}", text, vocab, objective)
    folder = PairFolder(str(path))
    vocabulary = read_vocabulary(str(vocab))
    batches = {}
    for permuted in (False, True):
        schedule = MaskingSchedule(Masking("ngram", 0.1667), permuted=permuted)
        stream = Stream(build_sources([folder], None, 0, False), RankShare(0, 1, 1, 40), schedule, 0)
        batches[permuted] = stream.micro_batches_at(stream.bounds_of(0), 0)[0]
    plain, found = batches[False], batches[True]
    plain.ids_T[plain.masked_positions_K] = plain.labels_K
    for start, end in zip(found.sequence_starts_S, [*found.sequence_starts_S[1:], len(found.ids_T)], strict=True):
        ids, segments = found.ids_T[start:end], found.segments_T[start:end]
        assert torch.equal(ids.roll(1), plain.ids_T[start:end]) and ids[-1] == vocabulary.special_id("cls")
        assert segments[-1] == 2 and torch.equal(segments[:-1], plain.segments_T[start + 1 : end])
    assert torch.equal(found.labels_K, found.ids_T[found.masked_positions_K])
    assert (found.segments_T == 1).any() == (objective != "full_sentences")
    assert found.order_T is not None and torch.equal(found.pair_labels_S, plain.pair_labels_S)
    folder.close()


def test_ranks_micro_batches_and_restarts_train_the_same(training, tmp_path: Path) -> None:
    """The same losses up to summation order: on two ranks, resumed on one, with other micro-batches.

    With ZeRO 3 on two: attention's matrices are no modules of torch, and mask_emb is a weight of the encoder itself.
    """
    steps = {"run__max_steps": 10, "checkpoint__every": 5}
    training.trained(1, tmp_path / "one", **XLNET, **steps, batch__micro_batch=16)
    for ranks, stop in ((2, {"run__stop_at": 5, "engine__zero_stage": 3}), (1, {})):
        training.trained(ranks, tmp_path / "two", **XLNET, **steps, **stop)
    found, expected = (training.losses(tmp_path / name) for name in ("two", "one"))
    assert found.keys() == expected.keys() and max(found) == 10
    for step, (_, loss, mlm_loss, *_) in found.items():
        assert (loss, mlm_loss) == pytest.approx(expected[step][1:3], rel=1e-5), step
