"""The parts of a model that are exported to separate Hugging Face folders: the model itself, or ELECTRA's two encoders.

ELECTRA's discriminator is in the folder itself, as transformers' ElectraForPreTraining, and the generator in a
subfolder, as ElectraForMaskedLM. Both folders hold the embeddings that the two share.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.models.electra import Discriminator, ReplacedTokenModel, generator_of
from trainer.models.pretraining import PretrainingModel

GENERATOR_FOLDER = "generator"

PartModel = PretrainingModel | Discriminator


@dataclass(frozen=True)
class ModelPart:
    """A part of a model.

    subfolder: where it lies in the Hugging Face folder; empty for the folder itself. model: shares its weights with
    the whole model. names: from the part's parameter names to those of the whole model.
    """

    subfolder: str
    model: PartModel
    names: dict[str, str]


def parts_of(model: PretrainingModel) -> list[ModelPart]:
    """Return a model's parts. The first one's folder contains the folders of the others."""
    by_subfolder: dict[str, PartModel] = {"": model}
    if isinstance(model, ReplacedTokenModel):
        by_subfolder = {"": model.discriminator, GENERATOR_FOLDER: generator_of(model)}

    # Shared weights have one name in the whole model.
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    parts = []
    for subfolder, part in by_subfolder.items():
        names = {name: name_of[id(parameter)] for name, parameter in part.named_parameters()}
        parts.append(ModelPart(subfolder, part, names))
    return parts
