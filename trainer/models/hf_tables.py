"""The names of our modules in transformers' classes, one table for each family.

Names leave out the `.weight` or `.bias` at the end. Several names on the right are the parts of one of our matrices, in
order: query, key and value are one matrix here and three in most classes of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass

ARCHITECTURES = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "albert": "AlbertForPreTraining",
    "megatron-bert": "MegatronBertForPreTraining",
    "modernbert": "ModernBertForMaskedLM",
    "eurobert": "EuroBertForMaskedLM",
    "esm": "EsmForMaskedLM",
    "nomic_bert": "NomicBertForMaskedLM",
    "gte": "GteForMaskedLM",
    "electra": "ElectraForPreTraining",
    "electra_generator": "ElectraForMaskedLM",
    "xlnet": "XLNetLMHeadModel",
}
"""For each family, the class that has all of our heads."""

AUTO_CLASS_OF_HEADS = {
    "ForPreTraining": "AutoModelForPreTraining",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "LMHeadModel": "AutoModelForCausalLM",
}
"""The Auto class that loads an architecture, by the end of the architecture's name.

AutoModelForPreTraining does not support most families that have only a masked-LM head.
"""


def auto_class_of(architecture: str) -> str:
    """Return the Auto class that loads a class of ARCHITECTURES, such as "BertForPreTraining"."""
    return next(auto for ending, auto in AUTO_CLASS_OF_HEADS.items() if architecture.endswith(ending))


AUTO_CLASSES = {family: auto_class_of(architecture) for family, architecture in ARCHITECTURES.items()}
"""For each family, the Auto class that loads its folders."""


@dataclass(frozen=True)
class WeightNames:
    """The names of a family's modules in transformers.

    base: the prefix of all modules except the heads.
    outside: our module -> theirs, for modules outside the layers.
    decoder: their projection onto the vocabulary. We have a matrix for it only if it is not tied.
    layer: the prefix of a layer's modules, with {} for the layer's number.
    inside: our module -> theirs, within a layer.
    """

    base: str
    outside: dict[str, str]
    decoder: str
    layer: str
    inside: dict[str, tuple[str, ...]]


def _embeddings_and_pooler(base: str) -> dict[str, str]:
    return {
        "encoder.embeddings.token": f"{base}.embeddings.word_embeddings",
        "encoder.embeddings.position": f"{base}.embeddings.position_embeddings",
        "encoder.embeddings.segment": f"{base}.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": f"{base}.embeddings.LayerNorm",
        "encoder.pooler": f"{base}.pooler.dense",
    }


def _masked_lm_head(projection: str, transform: str, norm: str = "LayerNorm") -> dict[str, str]:
    """Return a masked-LM head's names. projection: the module with the bias of the vocabulary. transform: before it."""
    return {
        "mlm_head": projection,
        "mlm_head.dense": f"{transform}.dense",
        "mlm_head.norm": f"{transform}.{norm}",
    }


_BERT_HEADS = _masked_lm_head("cls.predictions", "cls.predictions.transform") | {"pair_head": "cls.seq_relationship"}
_ROBERTA_HEADS = _masked_lm_head("lm_head", "lm_head", norm="layer_norm")
_ALBERT_HEADS = _masked_lm_head("predictions", "predictions") | {"pair_head": "sop_classifier.classifier"}
_ELECTRA_HEADS = _masked_lm_head("generator_lm_head", "generator_predictions") | {
    "encoder.widen": "electra.embeddings_project",
    "dense": "discriminator_predictions.dense",
    "prediction": "discriminator_predictions.dense_prediction",
}

_BERT_LAYER = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
    "norm": ("output.LayerNorm",),
}
_ALBERT_LAYER = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "attention.out": ("attention.dense",),
    "attention_norm": ("attention.LayerNorm",),
    "up": ("ffn",),
    "down": ("ffn_output",),
    "norm": ("full_layer_layer_norm",),
}
_LLAMA_LAYER = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_POST_NORMS = {"attention_norm": ("post_attention_layernorm",), "norm": ("post_mlp_layernorm",)}

WEIGHT_NAMES = {
    "bert": WeightNames(
        base="bert",
        outside=_embeddings_and_pooler("bert") | _BERT_HEADS,
        decoder="cls.predictions.decoder",
        layer="bert.encoder.layer.{}",
        inside=_BERT_LAYER,
    ),
    "roberta": WeightNames(
        base="roberta",
        outside=_embeddings_and_pooler("roberta") | _ROBERTA_HEADS,
        decoder="lm_head.decoder",
        layer="roberta.encoder.layer.{}",
        inside=_BERT_LAYER,
    ),
    "albert": WeightNames(
        base="albert",
        outside=_embeddings_and_pooler("albert")
        | _ALBERT_HEADS
        | {
            "encoder.widen": "albert.encoder.embedding_hidden_mapping_in",
            "encoder.pooler": "albert.pooler",
        },
        decoder="predictions.decoder",
        layer="albert.encoder.albert_layer_groups.{}.albert_layers.0",
        inside=_ALBERT_LAYER,
    ),
    "megatron-bert": WeightNames(
        base="bert",
        outside=_embeddings_and_pooler("bert") | _BERT_HEADS | {"encoder.norm": "bert.encoder.ln"},
        decoder="cls.predictions.decoder",
        layer="bert.encoder.layer.{}",
        inside=_BERT_LAYER | {"attention_norm": ("attention.ln",), "norm": ("ln",)},
    ),
    "modernbert": WeightNames(
        base="model",
        outside={
            "encoder.embeddings.token": "model.embeddings.tok_embeddings",
            "encoder.embeddings.norm": "model.embeddings.norm",
            "encoder.norm": "model.final_norm",
            "mlm_head": "decoder",
            "mlm_head.dense": "head.dense",
            "mlm_head.norm": "head.norm",
        },
        decoder="decoder",
        layer="model.layers.{}",
        inside={
            "attention.qkv": ("attn.Wqkv",),
            "attention.out": ("attn.Wo",),
            "attention_norm": ("attn_norm",),
            "up": ("mlp.Wi",),
            "down": ("mlp.Wo",),
            "norm": ("mlp_norm",),
        },
    ),
    "eurobert": WeightNames(
        base="model",
        outside={
            "encoder.embeddings.token": "model.embed_tokens",
            "encoder.norm": "model.norm",
            "mlm_head": "lm_head",
        },
        decoder="lm_head",
        layer="model.layers.{}",
        inside=_LLAMA_LAYER | {"attention_norm": ("input_layernorm",), "norm": ("post_attention_layernorm",)},
    ),
    "esm": WeightNames(
        base="esm",
        outside=_embeddings_and_pooler("esm") | _ROBERTA_HEADS | {"encoder.norm": "esm.encoder.emb_layer_norm_after"},
        decoder="lm_head.decoder",
        layer="esm.encoder.layer.{}",
        inside=_BERT_LAYER | {"attention_norm": ("attention.LayerNorm",), "norm": ("LayerNorm",)},
    ),
    "nomic_bert": WeightNames(
        base="nomic_bert",
        outside=_embeddings_and_pooler("nomic_bert")
        | _BERT_HEADS
        | {"mlm_head.norm": "cls.predictions.transform.layer_norm"},
        decoder="cls.predictions.decoder",
        layer="nomic_bert.layers.{}",
        inside=_LLAMA_LAYER | _POST_NORMS,
    ),
    "gte": WeightNames(
        base="gte",
        outside=_embeddings_and_pooler("gte") | _ROBERTA_HEADS | {"mlm_head": "lm_head.decoder"},
        decoder="lm_head.decoder",
        layer="gte.layers.{}",
        inside=_LLAMA_LAYER | _POST_NORMS,
    ),
    "electra": WeightNames(
        base="electra",
        outside=_embeddings_and_pooler("electra") | _ELECTRA_HEADS,
        decoder="generator_lm_head",
        layer="electra.encoder.layer.{}",
        inside=_BERT_LAYER,
    ),
    "xlnet": WeightNames(
        base="transformer",
        outside={
            "encoder": "transformer",
            "encoder.embeddings.token": "transformer.word_embedding",
            "mlm_head": "lm_loss",
        },
        decoder="lm_loss",
        layer="transformer.layer.{}",
        inside={
            "attention": ("rel_attn",),
            "attention_norm": ("rel_attn.layer_norm",),
            "up": ("ff.layer_1",),
            "down": ("ff.layer_2",),
            "norm": ("ff.layer_norm",),
        },
    ),
}
WEIGHT_NAMES["electra_generator"] = WEIGHT_NAMES["electra"]
"""Each of ELECTRA's two parts has a separate folder, with one of the two heads."""
