"""Fills in blanks with an exported model: in sentences of a text folder, and with word frequencies alone to compare.

    python -m clozeline.start.blanks TEXT_DIR RUN_DIR --output HF_DIR

They are printed, and the report of the run and the model's card show them. A model that has learned word frequencies
alone gives the same answer to every question. With - for TEXT_DIR, the sentences come from stdin, one a line, with
[MASK] in each. The other words are those of the `clozeline export` that wrote HF_DIR.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer
from transformers.utils import logging

from clozeline.start.closing import filled_lines
from pipeline.shard.text_layout import ends_sentence
from schemas import storage
from schemas.manifest import read_manifest
from schemas.shards import decode_text
from schemas.terminal import print_lines
from trainer.export.cli import parser, writing_of
from trainer.export.convert import write_card
from trainer.export.request import steps_to_export
from trainer.metrics.presentation import keep_running
from trainer.metrics.run_page import write_report
from trainer.metrics.run_record import write_blanks

SENTENCES = 5
WORDS_SHOWN = 4
FIT_CHARACTERS = range(40, 160)  # of a sentence to show

WORD = re.compile(r"(?<=\s)\w{2,}(?=[\s,.;])|[\u3400-\u9fff]")
"""A word between spaces, or an ideograph."""

NO_PROSE = re.compile(r"[@=<>{}|_\\]|\(\)")
"""Marks of code, addresses and tables."""

Question = tuple[str, str]
"""A sentence with its blank as the mask token, and the word that stood there; "" if it is not known."""


@torch.inference_mode()
def main() -> None:
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    text, *words = sys.argv[1:]
    options = parser().parse_args(words)
    run, hf = options.run, options.output
    tokenizer = AutoTokenizer.from_pretrained(hf)
    model = AutoModelForMaskedLM.from_pretrained(hf).eval()
    counts_V = torch.tensor(json.loads((Path(run) / "unigram.json").read_text())["counts"], dtype=torch.float64)
    of_stdin = ((line.rstrip(), "") for line in sys.stdin)
    questions = list(of_stdin if text == "-" else _blanked(text, tokenizer, counts_V))

    if not questions:  # as of text without spaces between words
        return
    filled = [("Word frequencies alone, whatever the sentence:", answers(counts_V / counts_V.sum(), tokenizer))]
    for sentence, word in questions:
        inputs = tokenizer(sentence.replace("[MASK]", tokenizer.mask_token), return_tensors="pt")
        inputs.pop("token_type_ids", None)
        blank = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0].item()
        logits_V = model(**inputs).logits[0, blank]  # V: tokens of the vocabulary
        shown = sentence.replace("[MASK]", f"____ ({word})") if word else sentence
        filled.append((shown, answers(logits_V.softmax(-1), tokenizer)))

    print_lines(filled_lines(filled))
    with keep_running("The report and the card with filled-in blanks"):
        write_blanks(run, filled)
        write_report(run)
        steps = steps_to_export(run, options.step, options.best, options.average)
        write_card(run, hf, steps, writing_of(options))


def answers(probabilities_V: torch.Tensor, tokenizer: Any) -> str:
    """Return one line with the most likely words and their probabilities, given those of the vocabulary, (V,)."""
    names = tokenizer.convert_ids_to_tokens(range(len(probabilities_V)))
    continues_V = torch.tensor([name.startswith("##") for name in names])  # as no word between spaces does
    shares, ids = probabilities_V.masked_fill(continues_V, 0).topk(WORDS_SHOWN)
    words = [tokenizer.decode([token]).strip() for token in ids.tolist()]
    return "   ".join(f"{word} {share:.1%}" for word, share in zip(words, shares.tolist(), strict=True))


def _blanked(folder: str, tokenizer: Any, counts_V: torch.Tensor) -> Iterator[Question]:
    """Yield sentences of a text folder, evenly spaced, each with a blank for one of its words that is one token.

    It is the word in the middle if these are sorted by how often they occur: neither too easy nor a matter of luck.
    """
    url = storage.join(folder, read_manifest(folder, "text").shards[0].path)
    documents = decode_text(storage.read(url), url)["sentences"].to_pylist()
    found = [one for sentences in documents for one in sentences[1:-1] if len(one) in FIT_CHARACTERS]
    found = [one for one in found if ends_sentence(one) and not NO_PROSE.search(one)] or found
    questions = 0
    for place in range(0, len(found), max(1, len(found) // (4 * SENTENCES))):
        words = sorted(set(WORD.findall(found[place])))
        tokens = {word: tokenizer.encode(f" {word}", add_special_tokens=False) for word in words}
        known = sorted((counts_V[ids[0]].item(), word) for word, ids in tokens.items() if len(ids) == 1)
        if known and questions < SENTENCES:
            word = known[len(known) // 2][1]
            questions += 1
            blank = re.search(rf"(?<=\s){re.escape(word)}(?=[\s,.;])", found[place])
            start = blank.start() if blank else found[place].index(word)
            yield f"{found[place][:start]}[MASK]{found[place][start + len(word) :]}", word


if __name__ == "__main__":
    main()
