"""transformers' own Trainer on our pairs: the rows and masks are those of our trainer, and the model learns."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForPreTraining,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
)

from schemas.errors import UsageError
from schemas.masking import Masking
from trainer.config.load import load_recipe
from trainer.data.folder import open_folders
from trainer.data.masked_pairs import MaskedPairs
from trainer.data.share import share_of
from trainer.data.stream import build_stream

ROWS = 32


def collator(pairs: Path) -> DataCollatorForTokenClassification:
    return DataCollatorForTokenClassification(AutoTokenizer.from_pretrained(pairs / "vocabulary"))


@pytest.mark.parametrize(("workers", "label"), [(0, "next_sentence_label"), (1, "sentence_order_label")])
def test_batches_are_those_of_our_trainer(pairs: Path, sop_pairs: list[Path], workers: int, label: str) -> None:
    folder = pairs if label == "next_sentence_label" else sop_pairs[0]
    changes = [f"data.pairs={folder}", f"batch.global_batch={ROWS}", f"batch.micro_batch={ROWS}", "run.seed=3"]
    recipe = load_recipe("tests/recipes/small_bert.toml", [*changes, "masking.kind=whole_word"])
    folders = open_folders(recipe)
    stream = build_stream(recipe, folders, share_of(recipe, 0, 1, folders))

    rows = MaskedPairs(str(folder), seed=3, masking=Masking("whole_word", 0.3))
    loader = DataLoader(rows, ROWS, collate_fn=collator(folder), num_workers=workers, persistent_workers=workers > 0)
    for number, batch in enumerate(islice(loader, 3)):
        (ours,) = stream.batch(number)
        real = batch["attention_mask"].bool()
        assert torch.equal(batch["input_ids"][real], ours.ids_T)
        assert torch.equal(batch["token_type_ids"][real], ours.segments_T)
        assert torch.equal((batch["labels"][real] != -100).nonzero().flatten(), ours.masked_positions_K)
        assert torch.equal(batch["labels"][real][ours.masked_positions_K], ours.labels_K)
        assert torch.equal(batch[label], ours.pair_labels_S)
    stream.close()

    first = next(iter(loader))["input_ids"]
    rows.set_epoch(1)
    later = next(iter(loader))["input_ids"]
    assert first.shape != later.shape or not torch.equal(first, later)


def test_trainer_learns_from_them(pairs: Path, tmp_path: Path) -> None:
    rows = MaskedPairs(str(pairs))
    batches: list[list[int]] = []
    padded = collator(pairs)

    def collate(features):
        batches.append(features[0]["labels"].tolist())
        return padded(features)

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForPreTraining(BertConfig(vocab_size=len(padded.tokenizer), **sizes))
    arguments = TrainingArguments(
        str(tmp_path / "run"),
        train_sampling_strategy="sequential",
        per_device_train_batch_size=ROWS,
        num_train_epochs=2,
        learning_rate=5e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, collate, rows)
    trainer.train()

    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    steps = -(-len(rows) // ROWS)
    assert len(losses) == 2 * steps and losses[-1] < losses[0] - 0.5
    assert batches[0] != batches[steps], "the second epoch has another order and other masks"

    arguments.train_sampling_strategy = "random"
    with pytest.raises(UsageError, match='train_sampling_strategy="sequential"'):
        Trainer(model, arguments, padded, rows).train()
    with pytest.raises(UsageError, match="carry no masks"):
        MaskedPairs(str(pairs), stored=True)
