"""Trains transformers' BERT or ModernBERT as its run_mlm example does, for quality.py.

    python benchmarks/quality_rival.py PAIRS HELD_OUT --output HF --seconds 600 [--model modernbert] [--shape 2x128]
        [--lr 5e-5] [--batch 8] [--tuned]

As in run_mlm.py, documents are joined and cut into blocks of equal length, transformers' collator masks 15% of the
tokens (80/10/10) at every step, AdamW has no weight decay, gradients are clipped at 1, and the learning rate falls
linearly to 0 without warmup. The model has run_mlm's defaults: dropout of 0.1 and initial weights with a standard
deviation of 0.02. With --tuned it has no dropout, initial weights that grow as widths shrink (0.057 at 128), and 6% of
warmup, which is better at these sizes. Tokens, layers, widths, heads and cores are those of our own runs.

On a CPU, time is CPU time of the process. Some steps are timed first, on a model that is thrown away, to determine how
many steps fit; the seconds of one are kept in HF/../step_seconds.json, and --time_only ends there. Writes
HF/curve.json with [seconds, held-out loss at [MASK]] of a dozen evaluations, whose time does not count.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from quality_measure import HeldOut, read_held_out
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    DataCollatorForLanguageModeling,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.optimization import get_linear_schedule_with_warmup

BLOCK = 128
HEAD_WIDTH = 32
TIMED_STEPS = 30
EVALUATIONS = 12
TUNED_WARMUP = 0.06


def main() -> None:
    flags = argparse.ArgumentParser(description="Trains a masked LM of transformers as run_mlm does.")
    flags.add_argument("pairs", type=Path)
    flags.add_argument("held_out", type=Path)
    flags.add_argument("--output", type=Path, required=True)
    flags.add_argument("--seconds", type=float, required=True)
    flags.add_argument("--model", choices=("bert", "modernbert"), default="bert")
    flags.add_argument("--shape", default="2x128", help="layers x width, in heads of 32")
    flags.add_argument("--lr", type=float, default=5e-5)
    flags.add_argument("--batch", type=int, default=8)
    flags.add_argument("--tuned", action="store_true")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--device", default="cpu")
    flags.add_argument("--time_only", action="store_true", help="time some steps, and train nothing")
    options = flags.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.pairs / "vocabulary")
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    blocks = blocks_of(options.pairs)

    seconds_a_step = step_seconds(options, tokenizer, endless_batches(blocks, options.batch, options.seed, collator))
    if options.time_only:
        return
    steps = max(EVALUATIONS, int(options.seconds / seconds_a_step))
    torch.manual_seed(options.seed)
    model = new_model(tokenizer, options)
    held_out = read_held_out(options.held_out)
    training = Training(model, options, steps)
    batches = endless_batches(blocks, options.batch, options.seed, collator)
    curve = [(step * seconds_a_step, loss) for step, loss in trained(training, batches, held_out)]

    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    result = {"steps": steps, "tokens": steps * options.batch * BLOCK, "seconds": curve[-1][0], "curve": curve}
    (options.output / "curve.json").write_text(json.dumps(result))


def step_seconds(options: argparse.Namespace, tokenizer: PreTrainedTokenizerBase, batches: Iterator[Any]) -> float:
    """Return the seconds that a step takes, measured once."""
    path = options.output.with_name("step_seconds.json" if options.device == "cpu" else "step_seconds_cuda.json")
    if not path.exists():
        timed = Training(new_model(tokenizer, options), options, steps=1000)
        timed.take(batches, 5)
        seconds = timed.take(batches, TIMED_STEPS) / TIMED_STEPS
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([seconds]))
    return json.loads(path.read_text())[0]


def new_model(tokenizer: PreTrainedTokenizerBase, options: argparse.Namespace) -> PreTrainedModel:
    """Return a model with random weights."""
    layers, width = map(int, options.shape.split("x"))
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": width // HEAD_WIDTH,
        "max_position_embeddings": BLOCK,
        "initializer_range": 0.02 * (1024 / width) ** 0.5 if options.tuned else 0.02,
    }
    config: PreTrainedConfig
    if options.model == "bert":
        dropout = 0.0 if options.tuned else 0.1
        dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        config = BertConfig(intermediate_size=4 * width, **dropouts, **shape)
    else:
        # With a gate, 8/3 of the width make as many weights as 4 times without: rounded as in our recipes.
        gated = {128: 344, 256: 688}.get(width, 8 * width // 3)
        marks = dict.fromkeys(("bos_token_id", "cls_token_id"), tokenizer.cls_token_id)
        marks |= dict.fromkeys(("eos_token_id", "sep_token_id"), tokenizer.sep_token_id)
        shape["classifier_pooling"] = "mean"  # as in our exports and the published ones, for fine-tuning
        config = ModernBertConfig(intermediate_size=gated, **marks, **shape)
    return AutoModelForMaskedLM.from_config(config).to(options.device)


class Training:
    """A model with its optimizer and learning rate schedule. steps: the length of the schedule."""

    def __init__(self, model: PreTrainedModel, options: argparse.Namespace, steps: int):
        self.model = model
        self.steps = steps
        self.device = options.device
        self.clock = process_time if options.device == "cpu" else perf_counter
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.0)
        warmup = int(TUNED_WARMUP * steps) if options.tuned else 0
        self.schedule = get_linear_schedule_with_warmup(self.optimizer, warmup, steps)

    def take(self, batches: Iterator[Any], steps: int) -> float:
        """Take some steps, and return their seconds, including those of reading and masking."""
        self.model.train()
        started = self.clock()
        for _ in range(steps):
            batch = next(batches).to(self.device)
            self.model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
        return self.clock() - started


def trained(training: Training, batches: Iterator[Any], held_out: HeldOut) -> list[tuple[int, float]]:
    """Take all steps, and return (step, held-out loss) of all evaluations. The last one is after the last step."""
    losses = []
    done = 0
    for number in range(1, EVALUATIONS + 1):
        until = training.steps * number // EVALUATIONS
        training.take(batches, until - done)
        done = until
        loss = held_out.score(training.model).loss
        losses.append((until, loss))
        print(f"{until} steps: {loss:.3f}", flush=True)
    return losses


def blocks_of(pairs: Path) -> list[list[int]]:
    """Return the tokens of all rows, joined and cut into blocks of BLOCK tokens. An incomplete block is dropped."""
    rows = []
    for shard in sorted(pairs.glob("*.arrow")):
        column = pa.ipc.open_file(shard).read_all()["input_ids"]
        rows.append(np.concatenate([chunk.flatten().to_numpy() for chunk in column.chunks]))

    ids = np.concatenate(rows).astype(np.int64)
    whole = len(ids) // BLOCK * BLOCK
    return ids[:whole].reshape(-1, BLOCK).tolist()


def endless_batches(blocks: list[list[int]], size: int, seed: int, collator: Any) -> Iterator[Any]:
    """Yield masked batches without end, each block at most once per epoch, in a different order in each epoch."""
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(blocks))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield collator([{"input_ids": blocks[i]} for i in chosen])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
