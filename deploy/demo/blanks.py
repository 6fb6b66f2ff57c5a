"""Fills in blanks with an exported model: the most likely words, next to what word frequencies alone would say.

    python deploy/demo/blanks.py HF_DIR RUN_DIR

A model that has only learned word frequencies gives the same answer to every question. RUN_DIR has the token counts of
the training text.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer
from transformers.utils import logging

BLANKS = (
    "If the key is not found, a [MASK] is raised.",
    "Return [MASK] if the object is a string, false otherwise.",
    "The default [MASK] is used if the argument is omitted.",
    "For more [MASK], see the documentation.",
    "Wait until the [MASK] has finished.",
    "The start and [MASK] of the slice.",
)
WORDS_SHOWN = 4


@torch.inference_mode()
def main() -> None:
    logging.disable_progress_bar()
    hf, run = map(Path, sys.argv[1:3])
    tokenizer = AutoTokenizer.from_pretrained(hf)
    model = AutoModelForMaskedLM.from_pretrained(hf).eval()

    counts_V = torch.tensor(json.loads((run / "unigram.json").read_text())["counts"], dtype=torch.float64)
    print("Word frequencies alone, whatever the sentence:")
    print("    " + answers(counts_V / counts_V.sum(), tokenizer))

    for text in BLANKS:
        inputs = tokenizer(text, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        blank = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
        logits_V = model(**inputs).logits[0, blank]  # V: tokens of the vocabulary
        print(text)
        print("    " + answers(logits_V.softmax(-1), tokenizer))


def answers(probabilities_V: torch.Tensor, tokenizer: Any) -> str:
    """Return one line with the most likely words and their probabilities, given those of the vocabulary, (V,)."""
    shares, ids = probabilities_V.topk(WORDS_SHOWN)
    words = tokenizer.convert_ids_to_tokens(ids.tolist())
    return "   ".join(f"{word} {share:.1%}" for word, share in zip(words, shares.tolist(), strict=True))


if __name__ == "__main__":
    main()
