"""Fill in blanks with an exported model: the five likeliest words for each, with their probabilities.

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


@torch.inference_mode()
def main() -> None:
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model = AutoModelForPreTraining.from_pretrained(sys.argv[1]).eval()
    for text in BLANKS:
        inputs = tokenizer(text, return_tensors="pt")
        blank = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
        probabilities, ids = model(**inputs).prediction_logits[0, blank].softmax(-1).topk(5)
        words = zip(tokenizer.convert_ids_to_tokens(ids.tolist()), probabilities.tolist(), strict=True)
        print(f"{text}\n    " + "   ".join(f"{word} {probability:.1%}" for word, probability in words))


if __name__ == "__main__":
    main()
