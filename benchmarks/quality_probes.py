"""Linear probes and fine-tuning for quality.py: what an encoder that transformers opens is worth on labeled text.

A linear probe predicts labels from frozen vectors. Sentences: a label from the mean of a sentence's vectors. Tags: a
label for each word from the vector of its first token. A logistic regression is fitted to some examples and scored on
all others.

Fine-tuning is a run of `clozeline finetune`, which changes all weights.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

FITTED = {"sentences": 4000, "tags": 20_000}
"""The number of examples that a probe is fitted to, by task."""

Task = Literal["sentences", "tags"]


def read_examples(path: Path) -> list[dict[str, Any]]:
    """Read JSONL: `text` and `label` for sentences, `tokens` and `tags` for words."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def probe(task: Task, examples: list[dict[str, Any]], hf: Path, seed: int) -> float:
    """Return the accuracy of a probe on a model. seed: of the random sample of examples that it is fitted to."""
    model = AutoModel.from_pretrained(hf)
    tokenizer = AutoTokenizer.from_pretrained(hf)
    if task == "sentences":
        vectors_ND = sentence_vectors(model, tokenizer, [example["text"] for example in examples])
        labels = [example["label"] for example in examples]
    else:
        vectors_ND = word_vectors(model, tokenizer, [example["tokens"] for example in examples])
        labels = [tag for example in examples for tag in example["tags"]]

    names = sorted(set(labels))
    labels_N = torch.tensor([names.index(label) for label in labels])
    return fitted_accuracy(vectors_ND, labels_N, seed, FITTED[task])


def fine_tuned_score(task: Path, hf: Path, seed: int) -> float:
    """Fine-tune a model on a task unless that is done, and return its first metric, on the test set if there is one.

    Writes to a folder next to HF that is named after the task's folder.
    """
    output = hf.parent / f"finetuned_{task.parent.name}"
    command = [sys.executable, "-m", "trainer.finetune", str(hf), "--task", str(task), "--output", str(output)]
    subprocess.run([*command, "--first_seed", str(seed)], check=True, stdout=subprocess.DEVNULL)

    results = json.loads((output / "results.json").read_text())
    (scores,) = [result["scores"] for result in results["seeds"]]
    return scores.get("test", scores["dev"])[results["metrics"][0]]


@torch.inference_mode()
def sentence_vectors(model: Any, tokenizer: Any, sentences: list[str]) -> Tensor:
    """Return (sentences, width): for each sentence, the mean of the last layer's vectors over its tokens."""
    model.eval()
    vectors = []
    for start in range(0, len(sentences), 64):
        encoded = tokenizer(
            sentences[start : start + 64], truncation=True, max_length=128, padding=True, return_tensors="pt"
        )
        encoded.pop("token_type_ids", None)
        hidden = model(**encoded).last_hidden_state
        weight = encoded["attention_mask"][..., None].float()
        vectors.append((hidden * weight).sum(1) / weight.sum(1))
    return torch.cat(vectors)


@torch.inference_mode()
def word_vectors(model: Any, tokenizer: Any, sentences: list[list[str]]) -> Tensor:
    """Return (words, width): the last layer's vector of the first token of each word, in the order of the text."""
    model.eval()
    vectors = []
    for start in range(0, len(sentences), 64):
        batch = sentences[start : start + 64]
        encoded = tokenizer(
            batch, is_split_into_words=True, truncation=True, max_length=128, padding=True, return_tensors="pt"
        )
        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        hidden = model(**inputs).last_hidden_state
        for row, words in enumerate(batch):
            first: dict[int, int] = {}
            for place, word in enumerate(encoded.word_ids(row)):
                if word is not None:
                    first.setdefault(word, place)
            assert len(first) == len(words), "sentences fit into 128 tokens"
            vectors.append(hidden[row, [first[word] for word in range(len(words))]])
    return torch.cat(vectors)


def fitted_accuracy(vectors_ND: Tensor, labels_N: Tensor, seed: int, train: int) -> float:
    """Return the accuracy of a logistic regression on the examples that it was not fitted to.

    seed: of the random sample of `train` examples that it is fitted to. The L2 penalty is 1e-3 per mean loss.
    """
    order = torch.randperm(len(labels_N), generator=torch.Generator().manual_seed(seed))
    fitted, measured = order[:train], order[train:]
    mean_D = vectors_ND[fitted].mean(0)
    scale_D = vectors_ND[fitted].std(0) + 1e-6
    x_ND = (vectors_ND - mean_D) / scale_D

    classes = int(labels_N.max()) + 1
    weight_CD = torch.zeros(classes, x_ND.shape[1], requires_grad=True)
    bias_C = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight_CD, bias_C], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = F.linear(x_ND[fitted], weight_CD, bias_C)
        value = F.cross_entropy(logits, labels_N[fitted]) + 1e-3 * weight_CD.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():
        answers = F.linear(x_ND[measured], weight_CD, bias_C).argmax(-1)
    return float((answers == labels_N[measured]).float().mean())
