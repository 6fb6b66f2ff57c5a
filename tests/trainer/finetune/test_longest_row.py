"""The longest row by an encoder's configuration is the longest one that its table of positions has room for."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModel

from trainer.finetune.opening import longest_row

SIZES = {"hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 40}
SIZES["entity_vocab_size"] = 4  # of luke

FAMILIES = ["albert", "bert", "camembert", "data2vec-text", "electra", "esm", "lilt", "longformer", "luke", "markuplm"]
FAMILIES += ["mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_row_is_longer_than_the_table_of_positions(family: str) -> None:
    config = AutoConfig.for_model(family, max_position_embeddings=48, pad_token_id=1, **SIZES)
    if family == "xmod":
        config.default_language = "en_XX"
    model = AutoModel.from_config(config)
    table = model.get_submodule("embeddings.position_embeddings")
    assert isinstance(table, torch.nn.Embedding)

    # A table with a padding index begins with rows for the padding token and for the ids before it.
    unused = 0 if table.padding_idx is None else table.padding_idx + 1
    assert longest_row(config) == table.num_embeddings - unused
