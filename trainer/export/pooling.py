"""The files that make an export a sentence encoder for sentence-transformers, which averages the states of all tokens.

Their format is that of sentence-transformers 2 and later, which all published sentence encoders have: modules.json
lists the parts, sentence_bert_config.json cuts texts, and 1_Pooling/config.json chooses the mean (Reimers & Gurevych,
arXiv:1908.10084). The mean is over all tokens of a text, special ones included and padding left out.
"""

from __future__ import annotations

import json
from typing import Any

from trainer.export.folder import MODULES_FILE, POOLING_FILE, SENTENCE_FILE
from trainer.models.shape import EncoderShape


def pooling_files(shape: EncoderShape) -> dict[str, bytes]:
    """Return the content of these files by name, for `SentenceTransformer(folder)`."""
    folder = POOLING_FILE.partition("/")[0]
    contents: dict[str, Any] = {
        MODULES_FILE: [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": folder, "type": "sentence_transformers.models.Pooling"},
        ],
        SENTENCE_FILE: {"max_seq_length": shape.max_position_embeddings, "do_lower_case": False},
        POOLING_FILE: {"word_embedding_dimension": shape.hidden_size, "pooling_mode_mean_tokens": True},
    }
    return {name: (json.dumps(content, indent=2) + "\n").encode() for name, content in contents.items()}
