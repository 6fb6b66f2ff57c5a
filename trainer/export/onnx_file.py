"""Writes an export's model as onnx/model.onnx, where optimum, sentence-transformers and transformers.js look for it.

torch exports the model that transformers loads from the folder, so the graph has no code of ours. ONNX Runtime then
computes some rows, padded and alone, and its outputs are compared with torch's. Needs the extra `onnx`.

Inputs, int64, (batch, sequence): input_ids, attention_mask, and token_type_ids of models with segments. Outputs,
float32: last_hidden_state (batch, sequence, hidden), logits of the folder's class, (batch, sequence, vocabulary) for a
masked LM and (batch, sequence) for ELECTRA's discriminator, and pair_logits (batch, 2) if there is a pair head.
"""

from __future__ import annotations

import logging
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from schemas.errors import CheckpointError
from schemas.vocabulary import Vocabulary
from trainer.export.folder import ONNX_FILE
from trainer.export.verify import LARGEST_DIFFERENCE, load_exported, relative_difference, sample_rows
from trainer.models.electra import PartModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("last_hidden_state", "logits", "pair_logits")


class Graph(nn.Module):
    """A model of transformers that returns a tuple of the outputs above."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        output: Any = self.model(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True, **segments
        )
        logits = [value for name, value in output.items() if name.endswith("logits")]
        return output.hidden_states[-1], *logits


def check_onnx() -> None:
    """Raise ModuleNotFoundError if a package is missing."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        import_module(package)


def write_onnx(folder: Path, model: PartModel, vocabulary: Vocabulary) -> float:
    """Write ONNX_FILE into a folder that holds `model` for transformers, and return the largest relative difference.

    Weights above 1.5 GB lie next to it, in model.onnx.data. Raises CheckpointError if ONNX Runtime's outputs differ
    from torch's by more than LARGEST_DIFFERENCE.
    """
    graph = Graph(load_exported(folder, model.shape.family)).eval()
    padded, alone = _sample_inputs(model, vocabulary)
    path = folder / ONNX_FILE
    path.parent.mkdir()
    _translate(graph, padded, path)

    import onnxruntime  # starts a thread, so not with the module: tests fork processes that have imported all modules

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    largest = max(_difference(session, graph, inputs) for inputs in (padded, alone))
    if not largest <= LARGEST_DIFFERENCE:
        raise CheckpointError(
            f"The ONNX file is not the checkpoint's model: ONNX Runtime's outputs differ from torch's by {largest:.1e} "
            f"of the largest, expected at most {LARGEST_DIFFERENCE:.0e}. Nothing was published. Leave --onnx out, try "
            "the versions of torch and onnxruntime in constraints.txt, and report this."
        )
    return largest


def _sample_inputs(model: PartModel, vocabulary: Vocabulary) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return inputs of several rows padded to the longest, and of one row without padding, in the order of INPUTS."""
    rows = sample_rows(model, vocabulary)
    ids_BL = pad_sequence([row.ids_T for row in rows], True, vocabulary.special_id("pad"))
    attention_BL = pad_sequence([torch.ones_like(row.ids_T) for row in rows], True)
    segments_BL = pad_sequence([row.segments_T for row in rows], True)

    used = 3 if model.shape.type_vocab_size > 1 else 2
    padded = (ids_BL, attention_BL, segments_BL)[:used]
    length = len(rows[1].ids_T)
    return padded, tuple(values_BL[1:2, :length] for values_BL in padded)


def _translate(graph: Graph, inputs: tuple[Tensor, ...], path: Path) -> None:
    """Write a model for any number of rows of any length. The file names no place on this machine."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns that torchvision is missing
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        outputs = len(graph(*inputs))
        program = torch.onnx.export(
            graph,
            inputs,
            input_names=INPUTS[: len(inputs)],
            output_names=OUTPUTS[:outputs],
            dynamic_shapes=[{0: "batch", 1: "sequence"} for _ in inputs],
            dynamo=True,
            verbose=False,
        )
    log.setLevel(level)

    # torch notes for each node which lines of which files it is from.
    assert program is not None  # because of dynamo=True
    program.model.graph.metadata_props.clear()
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    program.save(path)


@torch.inference_mode()
def _difference(session: Any, graph: Graph, inputs: tuple[Tensor, ...]) -> float:
    """Return the largest difference of any output, relative as in verify.py; NaN if one is not finite.

    session: ONNX Runtime's, with the same model as the graph.
    """
    feed = {name: values.numpy() for name, values in zip(INPUTS, inputs, strict=False)}
    is_real_BL = inputs[1].bool()
    differences = []
    for theirs, ours in zip(session.run(None, feed), graph(*inputs), strict=True):
        both = [torch.from_numpy(theirs), ours]
        if ours.shape[:2] == is_real_BL.shape:  # not what is computed at padding
            both = [values[is_real_BL] for values in both]
        differences.append(relative_difference(*both))
    return float(torch.stack(differences).max())
