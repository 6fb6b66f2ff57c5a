"""Runs other libraries on the same text, each in a separate process. Called by run.py, which times them.

python benchmarks/rivals.py encode_batch_fast CORPUS.jsonl TOKENIZER.json
python benchmarks/rivals.py train_from_iterator CORPUS.jsonl SIZE
python benchmarks/rivals.py datatrove FOLDER_OF_JSONL OUTPUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def encode_batch_fast(corpus: str, tokenizer_json: str) -> None:
    """Tokenize whole documents, 1,000 at a time, and do nothing else: the minimum for any pipeline that tokenizes."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_json)
    with open(corpus) as file:
        texts = [json.loads(line)["text"] for line in file]
    for start in range(0, len(texts), 1000):
        tokenizer.encode_batch_fast(texts[start : start + 1000], add_special_tokens=False)


def train_from_iterator(corpus: str, size: str) -> None:
    """Train a WordPiece vocabulary on the same texts with tokenizers' own trainer."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=int(size), min_frequency=2, show_progress=False)
    with open(corpus) as file:
        tokenizer.train_from_iterator((json.loads(line)["text"] for line in file), trainer)


def datatrove(folder: str, output: str) -> None:
    """Read documents and write them unchanged, with two workers."""
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    tasks = len(list(Path(folder).iterdir()))
    LocalPipelineExecutor(
        pipeline=[JsonlReader(folder), JsonlWriter(output, compression=None)],
        tasks=tasks,
        workers=2,
        logging_dir=f"{output}/logs",
    ).run()


if __name__ == "__main__":
    rivals = {
        "encode_batch_fast": encode_batch_fast,
        "train_from_iterator": train_from_iterator,
        "datatrove": datatrove,
    }
    rivals[sys.argv[1]](*sys.argv[2:])
