"""Fills in blanks with an exported model: the five most likely words for each, with their probabilities.

python deploy/demo/blanks.py HF_DIR
"""

from __future__ import annotations

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForPreTraining, AutoTokenizer
from transformers.utils import logging

BLANKS = (
    "Returns a new [MASK] with the given name.",
    "Return [MASK] if the object is a string, false otherwise.",
    "If the key is not [MASK], a KeyError is raised.",
)
WORDS_SHOWN = 5


@torch.inference_mode()
def main() -> None:
    logging.disable_progress_bar()
    folder = sys.argv[1]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForPreTraining.from_pretrained(folder).eval()

    for text in BLANKS:
        inputs = tokenizer(text, return_tensors="pt")
        blank = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()

        logits_V = model(**inputs).prediction_logits[0, blank]  # V: tokens of the vocabulary
        probabilities, ids = logits_V.softmax(-1).topk(WORDS_SHOWN)
        words = tokenizer.convert_ids_to_tokens(ids.tolist())

        print(text)
        shown = [f"{word} {share:.1%}" for word, share in zip(words, probabilities.tolist(), strict=True)]
        print("    " + "   ".join(shown))


if __name__ == "__main__":
    main()
