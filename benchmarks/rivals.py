"""Runs other libraries on the same text, each in a separate process. Called by run.py and corpora.py,
which time them.

python benchmarks/rivals.py encode_batch_fast CORPUS.jsonl TOKENIZER.json
python benchmarks/rivals.py train_from_iterator CORPUS.jsonl SIZE
python benchmarks/rivals.py datatrove FOLDER OUTPUT [READER [FILTERS [WORKERS]]]
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


def datatrove(folder: str, output: str, reader: str = "jsonl", filters: str = "none", workers: str = "2") -> None:
    """Read the documents of a folder, filter them, and write them as JSON lines, not compressed.

    reader: jsonl, csv, parquet, or warc, whose pages go through its extractor with Trafilatura, as in FineWeb. filters:
    none, c4, gopher or fineweb, each with datatrove's defaults.
    """
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline import extractors, readers
    from datatrove.pipeline import filters as rules
    from datatrove.pipeline.writers import JsonlWriter

    read = {
        "jsonl": readers.JsonlReader,
        "csv": readers.CSVReader,
        "parquet": readers.ParquetReader,
        "warc": readers.WarcReader,
    }
    extractor = [extractors.Trafilatura()] if reader == "warc" else []
    chosen = {
        "none": [],
        "c4": [rules.C4QualityFilter],
        "gopher": [rules.GopherQualityFilter, rules.GopherRepetitionFilter],
        "fineweb": [rules.FineWebQualityFilter],
    }[filters]

    tasks = len(list(Path(folder).iterdir()))
    LocalPipelineExecutor(
        pipeline=[
            read[reader](folder),
            *extractor,
            *(each() for each in chosen),
            JsonlWriter(output, compression=None),
        ],
        tasks=tasks,
        workers=int(workers),
        logging_dir=f"{output}/logs",
    ).run()


if __name__ == "__main__":
    rivals = {
        "encode_batch_fast": encode_batch_fast,
        "train_from_iterator": train_from_iterator,
        "datatrove": datatrove,
    }
    rivals[sys.argv[1]](*sys.argv[2:])
