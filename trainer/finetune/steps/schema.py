"""The schema of a steps file, a TOML file that says on which texts to continue pretraining before fine-tuning.

Paths are relative to the steps file's folder, except those inside recipes, which are relative to the working directory,
as with `clozeline train`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from schemas.urls import normal
from trainer.config.sections import Place, Section

Patterns = Annotated[str, AfterValidator(lambda text: ",".join(map(normal, text.split(","))))]
"""File patterns with commas between them, each of which may begin with `~` or file://."""


class ShardFlags(Section):
    """Flags of `clozeline shard`, whose --help describes them. Flags that are left out have its defaults."""

    format: Literal["auto", "text", "jsonl", "parquet", "wikiextractor"] | None = Field(
        default=None, description="Format of the corpus."
    )
    text_layout: Literal["blank_line", "line", "file"] | None = Field(
        default=None, description="What separates documents in plain text."
    )
    text_key: str | None = Field(default=None, description="The JSON key or the Parquet column that holds the text.")
    encoding: str | None = Field(default=None, description="Character encoding of the corpus.")
    language: str | None = Field(default=None, description="Language, for the sentence splitter.")
    sentence_splitter: Literal["sentencex", "newline"] | None = Field(
        default=None, description="How documents are divided into sentences."
    )
    dedup: Literal["none", "exact", "minhash"] | None = Field(
        default=None, description="Which copies of documents are dropped."
    )
    direct_num_workers: int | None = Field(default=None, gt=0, description="Worker processes on this machine.")


class PairsFlags(Section):
    """Flags of `clozeline pairs`, whose --help describes them. Flags left out have its defaults or the step's."""

    objective: Literal["nsp", "sop", "full_sentences", "doc_sentences"] | None = Field(
        default=None,
        description="How rows are made. If unset, rows of one segment, so that there are only masks to predict: "
        '"full_sentences" of a domain, and "doc_sentences", which keep examples apart, of a task.',
    )
    max_length: int | None = Field(
        default=None,
        gt=2,
        description="Tokens of the longest row. If unset, the recipe's data.max_length, or 128; at most what the "
        "encoder takes.",
    )
    word_segmenter: Literal["none", "jieba"] | None = Field(
        default=None, description="How Chinese text is divided into words."
    )
    direct_num_workers: int | None = Field(default=None, gt=0, description="Worker processes on this machine.")


class AdaptSection(Section):
    """A step of continued pretraining."""

    recipe: Place = Field(
        description="Recipe file, or the name of one that ships, such as adapt_task. Its [model] is replaced by that "
        "of the encoder, except dropout."
    )
    set: list[str] = Field(
        default=[], description='Changes of the recipe, as --set has them: ["optimizer.lr=5e-5", "run.seed=1"].'
    )
    epochs: float | None = Field(
        default=None,
        gt=0,
        description="Passes over the text after which the step ends, if it has not come to the recipe's run.max_steps "
        "before, rounded down to whole steps. 0 to 1 is a part of the text. If unset, run.max_steps alone decides.",
    )
    shard: ShardFlags = Field(default=ShardFlags(), description="Flags of `clozeline shard`.")
    make_pairs: PairsFlags = Field(default=PairsFlags(), description="Flags of `clozeline pairs`.")


class GeneralSection(Section):
    """The encoder that the steps start from: a folder, or a recipe that is trained first."""

    folder: Place | None = Field(default=None, description="Encoder in the Hugging Face format.")
    recipe: Place | None = Field(
        default=None, description="Recipe that is trained instead of a folder. It names its own data.pairs."
    )
    set: list[str] = Field(default=[], description="Changes of the recipe, as --set has them.")


class DomainSection(AdaptSection):
    """Continued pretraining on a domain's text."""

    corpus: Patterns | list[Patterns] | None = Field(
        default=None, description="Text files, or patterns of them, as `clozeline shard --input` takes them."
    )
    pairs: Place | list[Place] | None = Field(
        default=None, description="Folders of pairs that were made with the encoder's tokenizer, instead of a corpus."
    )


class TaskStepSection(AdaptSection):
    """Continued pretraining on the text of the task's training files. Labels and the other files are not used."""

    epochs: float | None = Field(
        default=100.0,
        gt=0,
        description="Passes over the text after which the step ends, if it has not come to the recipe's run.max_steps "
        "before. 100 in Gururangan et al. (arXiv:2004.10964).",
    )


class FinetuneSection(Section):
    """Fine-tuning, with the values that `clozeline finetune FOLDER` takes as flags."""

    task: Place = Field(description="The task file.")
    data: Place | None = Field(default=None, description="Folder of the task's files. If unset, the task file's.")
    seeds: int = Field(default=1, gt=0, description="How often to fine-tune, with other draws.")
    first_seed: int = Field(default=0, ge=0, description="The first of these seeds.")
    set: list[str] = Field(default=[], description='Changes of the task file: ["training.lr=5e-5"].')


class Steps(Section):
    """All steps, in the order in which they run."""

    general: GeneralSection | None = Field(
        default=None, description="The encoder to begin with. If unset, FOLDER of the command line."
    )
    domain: DomainSection | None = Field(default=None, description="Continued pretraining on a domain's text.")
    task: TaskStepSection | None = Field(default=None, description="Continued pretraining on the task's own text.")
    finetune: FinetuneSection = Field(description="Fine-tuning on the task.")


ORDER = tuple(Steps.model_fields)
"""The names of the steps, in the order in which they run."""
