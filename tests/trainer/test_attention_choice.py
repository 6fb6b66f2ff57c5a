"""Which kernel of attention with dropout a run uses, and that a resume keeps it. tests/gpu has the trial itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.small_models import SMALL_VOCABULARY, section
from trainer import attention_choice
from trainer.attention_choice import (
    FLASH,
    NO_FLASH,
    SWITCH,
    TRITON,
    Trial,
    attention_of,
    choose_attention,
    has_flash,
    outcome_of,
    recorded_attention,
    row_lengths,
    rules_of,
    set_triton,
    try_kernel,
)
from trainer.checkpoint.format import FoundCheckpoint
from trainer.checkpoint.state import TrainingState
from trainer.config.load import load_recipe
from trainer.config.phases import Phase
from trainer.models.attention import AttentionRule
from trainer.models.attention_trial import checks_of, kept_weights
from trainer.models.encoder import Attention
from trainer.models.pretraining import PretrainingModel
from trainer.models.starting_weights import empty_model

FAST = Trial(None, 1.3)


def model_of(family: str, *changes: str) -> PretrainingModel:
    sizes = ["hidden_size=64", "num_attention_heads=2", "attention_probs_dropout_prob=0.1"]
    return empty_model(section(family, *sizes, *changes), SMALL_VOCABULARY.size, SMALL_VOCABULARY.special_id("mask"))


def test_all_ranks_must_find_the_kernel_right_and_the_first_one_fast() -> None:
    assert outcome_of([FAST, FAST], any_speed=False) == FAST
    assert outcome_of([FAST, Trial("it is wrong")], any_speed=False).fault == "it is wrong"
    assert outcome_of([Trial(None, 1.04), FAST], any_speed=False).fault == "it is 1.04 times as fast here"


FOLDERS: list[Any] = [SimpleNamespace(max_length=128, manifest=SimpleNamespace(statistics={"lengths": [0, 0, 5]}))]


@pytest.mark.parametrize(
    ("recorded", "trial", "changes", "said"),
    [
        (None, FAST, [], ["a Triton kernel, 1.30 times as fast"]),
        (None, Trial(None, 0.9), [], ["torch's flash attention; not the Triton kernel: it is 0.90 times"]),
        (None, Trial(None, 0.9), ["engine.deterministic=true"], ["a Triton kernel, 0.90 times"]),
        (TRITON, Trial(None, 0.9), [], ["a Triton kernel, as in the steps before"]),
        (TRITON, Trial("it is wrong"), [], ["not the Triton kernel: it is wrong", "drops other weights"]),
        (FLASH, FAST, [], ["torch's flash attention, as in the steps before"]),
        (None, Trial(NO_FLASH), [], []),
        (TRITON, Trial(NO_FLASH), [], ["drops other weights"]),
    ],
)
def test_what_a_run_uses_and_says(monkeypatch, caplog, recorded, trial: Trial, changes: list[str], said) -> None:
    monkeypatch.setattr(attention_choice, "run_on_all_ranks", lambda _: [trial])
    monkeypatch.setattr(attention_choice, "has_flash", lambda *_: True)
    recipe = load_recipe("bert_base", ["data.pairs=pairs", "run.output=run", *changes])
    model = model_of("bert")
    with caplog.at_level("INFO"):
        choose_attention(model, recipe, FOLDERS, recorded)
    assert len(caplog.messages) == len(said)
    assert all(words in message for words, message in zip(said, caplog.messages, strict=True))
    assert attention_of(model) == (TRITON if any("a Triton kernel" in words for words in said) else FLASH)


@pytest.mark.parametrize("recorded", [None, TRITON])
def test_the_kernel_can_be_turned_off(monkeypatch, caplog, recorded: str | None) -> None:
    monkeypatch.setenv(SWITCH, "0")
    model = model_of("bert")
    choose_attention(model, load_recipe("bert_base", ["data.pairs=pairs", "run.output=run"]), FOLDERS, recorded)
    assert attention_of(model) == FLASH
    assert [SWITCH in message for message in caplog.messages] == [True] * (recorded == TRITON)


def test_gpus_without_flash_attention_have_no_trial(monkeypatch) -> None:
    monkeypatch.setattr(attention_choice, "device_of_rank", lambda: 0)
    rules = rules_of(model_of("bert"))
    for capability, expected in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert has_flash(rules, torch.float16) == expected
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert try_kernel(rules, [9], 9, torch.float16).fault == NO_FLASH


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "megatron-bert", "electra"])
def test_families_with_dropout_in_whole_rows_are_offered_the_kernel(family: str) -> None:
    electra = ["embedding_size=32", "generator_size=0.5"] if family == "electra" else []
    rules = rules_of(model_of(family, *electra))
    assert rules[AttentionRule(2, 0.1, triton=True)] == 32
    assert len(rules) == (2 if family == "electra" else 1), "the generator has one head"


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("bert", ["attention_probs_dropout_prob=0.0"]),
        ("bert", ["num_attention_heads=4"]),  # of 16 values
        ("eurobert", []),  # shared keys
        ("xlnet", []),
        ("modernbert", ["window=1", "attention_probs_dropout_prob=0.0"]),
    ],
)
def test_others_are_not(family: str, changes: list[str]) -> None:
    assert rules_of(model_of(family, *changes)) == {}


def test_windows_are_offered_the_kernel() -> None:
    """Also without dropout. Layers in which tokens see their whole row are not."""
    rules = rules_of(model_of("modernbert", "attention_probs_dropout_prob=0.0"))
    assert rules == {AttentionRule(2, window=3, triton=True): 32}


@pytest.mark.parametrize(
    ("dropout", "length", "used"),
    [(0.0, 8192, [False, True, True, False]), (0.1, 8192, [False, True, True, False]), (0.1, 128, [True] * 4)],
)
def test_windows_have_the_kernel_at_any_length(monkeypatch, caplog, dropout: float, length: int, used) -> None:
    monkeypatch.setattr(attention_choice, "run_on_all_ranks", lambda _: [FAST])
    model = model_of("modernbert", f"attention_probs_dropout_prob={dropout}")
    folders: list[Any] = [SimpleNamespace(max_length=length, manifest=FOLDERS[0].manifest)]
    with caplog.at_level("INFO"):
        choose_attention(model, load_recipe("bert_base", ["data.pairs=pairs", "run.output=run"]), folders, None)
    assert [module.triton for module in model.modules() if isinstance(module, Attention)] == used
    what = "with dropout" if length == 128 else "within windows"
    assert caplog.messages == [
        f"Attention {what}: a Triton kernel, 1.30 times as fast as torch's flash attention here."
    ]


def test_a_checkpoint_records_what_the_layers_use() -> None:
    model = model_of("bert")
    assert attention_of(model) == FLASH
    set_triton(model, rules_of(model))
    assert attention_of(model) == TRITON
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    assert all(attention.train().rule().triton for attention in attentions)
    assert all(attention.eval().rule().dropout == 0.0 for attention in attentions), "evaluations use flash attention"


def test_a_phase_keeps_the_kernel_of_its_steps_and_the_next_one_chooses() -> None:
    """Checkpoints that record none were trained with FlashAttention-2."""
    recipe = load_recipe("bert_base", ["data.pairs=pairs", "run.output=run"])
    phases = [Phase(recipe, steps_before, steps_before + 10, 0, 20) for steps_before in (0, 10)]

    def recorded(phase: Phase, step: int, attention: str) -> str | None:
        state = TrainingState(step=step, tokens=0, seconds=0.0, identity={}, attention=attention)
        return recorded_attention(phase, FoundCheckpoint(Path("checkpoint"), state, []))

    assert recorded_attention(phases[0], None) is None
    assert recorded(phases[0], 5, TRITON) == TRITON
    assert recorded(phases[0], 5, "") == FLASH
    assert recorded(phases[1], 10, TRITON) is None


def test_trial_rows_are_as_long_as_those_of_the_run() -> None:
    """A quarter of all rows has 3 tokens, three quarters have 7."""
    statistics = [{"lengths": [0, 0, 0, count, 0, 0, 0, 900 - count]} for count in (450, 0)]
    folders: list[Any] = [SimpleNamespace(manifest=SimpleNamespace(statistics=of_one)) for of_one in statistics]
    lengths = row_lengths(folders, 6000)
    assert abs(sum(lengths) - 6000) <= 7
    assert lengths.count(3) == 250 and lengths.count(7) == 750
    assert row_lengths(folders, 6000) == lengths
    assert lengths != sorted(lengths, reverse=True)


def test_the_trial_checks_what_a_run_can_meet() -> None:
    """Batches of short rows alone have other kernels; evaluations within windows have no dropout."""
    dropping, window, both = (AttentionRule(2, 0.1), AttentionRule(2, window=9), AttentionRule(2, 0.1, window=9))
    assert checks_of(dropping, 512) == [(dropping, 512), (dropping, 128)]
    assert checks_of(dropping, 100) == [(dropping, 100)]
    assert checks_of(window, 8192) == [(window, 8192), (window, 128)]
    assert checks_of(both, 128) == [(both, 128), (window, 128)]


def test_only_heads_of_the_size_that_was_tried_have_the_kernel() -> None:
    """The generator's head has 48 values, which the kernel cannot compute."""
    changes = ["hidden_size=128", "num_attention_heads=1", "embedding_size=32", "generator_size=0.375"]
    model = model_of("electra", *changes)
    set_triton(model, rules_of(model))
    used = {module.shape.head_size: module.triton for module in model.modules() if isinstance(module, Attention)}
    assert used == {128: True, 48: False}


@pytest.mark.parametrize("trial", [Trial(None, 0.9), Trial("it is wrong"), Trial(NO_FLASH)])
def test_a_resume_without_dropout_may_use_another_kernel(monkeypatch, caplog, trial: Trial) -> None:
    """It changes the results by rounding, which is no reason for a warning."""
    monkeypatch.setattr(attention_choice, "run_on_all_ranks", lambda _: [trial])
    model = model_of("modernbert", "attention_probs_dropout_prob=0.0")
    choose_attention(model, load_recipe("bert_base", ["data.pairs=pairs", "run.output=run"]), FOLDERS, TRITON)
    assert attention_of(model) == (FLASH if trial.fault else TRITON)
    assert not any(record.levelname == "WARNING" for record in caplog.records)


def test_dropout_masks_look_random() -> None:
    """Shares of kept weights, and of equal neighbors in each direction, as independent draws have them."""
    rule = AttentionRule(16, 0.1)
    masks = [kept_weights(torch.tensor(seed), 640, 256, rule) for seed in ([5, 6], [6, 6], [5, 7])]
    first = masks[0]
    pairs = {
        "heads": (first[1:], first[:-1]),
        "queries": (first[:, 1:], first[:, :-1]),
        "keys": (first[:, :, 1:], first[:, :, :-1]),
        "a query and a key": (first, first.transpose(1, 2)),
        "one seed and the next": (first, masks[1]),
        "two second numbers": (first, masks[2]),
    }
    for name, (one, other) in pairs.items():
        equal = float((one == other).float().mean())
        assert abs(equal - 0.82) < 0.005, name  # 0.9 ** 2 + 0.1 ** 2

    # Each mean is within 4.5 standard deviations of its expectation.
    for axes in ((0, 1, 2), (1, 2), (0, 2), (0, 1)):
        shares = first.float().mean(axes)
        draws = first.numel() / shares.numel()
        assert float((shares - 0.9).abs().max()) < 4.5 * (0.09 / draws) ** 0.5, axes


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="triton is installed")
def test_nothing_needs_triton() -> None:
    with pytest.raises(ModuleNotFoundError, match="triton"):
        importlib.import_module("trainer.models.attention_triton")
