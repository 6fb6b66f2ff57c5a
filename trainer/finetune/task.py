"""The schema of a task file, a TOML file that says what to fine-tune on and how.

task_file.py reads, writes and checks task files. A key that is left out gets the default for the task's kind, so a Task
always holds every value that training uses.
"""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from trainer.config.sections import Beta, Place, Section
from trainer.finetune.task_kinds import fill_defaults

KindName = Literal["sentence", "pair", "choice", "tags", "span"]
Format = Literal["jsonl", "json", "tsv", "csv", "parquet", "squad", "conll", "c3"]

Schedule = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "polynomial",
    "inverse_sqrt",
    "warmup_stable_decay",
    "constant",
    "constant_with_warmup",
]
"""Trainer's schedules, but those that change the rate by a score: they would lower it when a score rises."""

Optimizer = Literal["adamw_torch", "adamw_torch_fused", "adafactor", "adagrad", "rmsprop", "sgd"]
"""Those of Trainer's optimizers that need no further package."""

TRAIN = "train"
DEV = "dev"
TEST = "test"
"""The names of a task's sets. Those of [data.extra] have others."""

Column = str | int
Columns = Column | list[Column]

Files = Place | Annotated[list[Place], Field(min_length=1)]
"""A file, or several."""

NUMBER: Literal["number"] = "number"
"""The value of data.labels that makes a task a regression."""


class ColumnsSection(Section):
    """Which column of a file holds each part of an example.

    In TSV and CSV files a column is a name from the header or a number, counted from 0 (-1 is the last column). In
    CoNLL files it is a number: by default words are 0 and tags -1, or 1 and 3 in .conllu files. In JSON and Parquet
    files it is a key, with dots for nested keys ("passage.text"); a list of objects on that path, such as the questions
    of a passage, makes one example per element. Several columns are joined into one text with spaces.
    """

    id: Columns | None = Field(
        default=None, description="Where an example's id is. If unset, its position in the set, from 0."
    )
    text: Columns | None = Field(default=None, description="The text (kind sentence), or the first of two (pair).")
    text_pair: Columns | None = Field(default=None, description="The second text (kind pair).")
    label: Column | None = Field(
        default=None, description="The label (sentence and pair), or which choice is right (choice)."
    )
    context: Columns | None = Field(default=None, description="The text that all choices follow (kind choice).")
    prefix: Columns | None = Field(
        default=None, description="A text that is put before each choice (kind choice), such as a question."
    )
    choices: Columns | None = Field(
        default=None, description="One column for each choice, or one JSON key that holds a list (kind choice)."
    )
    words: Column | None = Field(
        default=None, description="The words of a sentence (kind tags): a JSON list, or a CoNLL column."
    )
    tags: Column | None = Field(
        default=None, description="The tag of each word (kind tags): a JSON list, or a CoNLL column."
    )


class TaskDataSection(Section):
    """The files of a task and how to read them.

    Relative paths start at the folder of `--data`, or without it at the task file's folder. Paths may be URLs.
    """

    train: Files = Field(description="The training file, or several that are read one after another.")
    dev: Files = Field(description="The file, or files, that the best epoch is chosen by.")
    test: Files | None = Field(
        default=None, description="The file, or files, that gets predictions. Labels may be absent or placeholders."
    )
    extra: dict[str, Files] = Field(
        default={}, description="Further files, by name, that get predictions and, where they have labels, scores."
    )
    format: Format = Field(
        description="Format of the files; if unset, by the training file's ending: .jsonl, .tsv, .csv, .parquet, "
        '.conll and .conllu (both "conll"); .txt is "tsv" ("conll" for the kind tags), and .json is "jsonl" ("squad" '
        "for the kind span).",
    )
    header: bool = Field(
        default=True,
        description="Whether the first line of TSV and CSV files names the columns. Otherwise columns are numbers. "
        "If unset, a first line with the label of another line is an error.",
    )
    quotes: bool = Field(
        description="Whether quotes in TSV and CSV files enclose fields. If unset, true for csv and false for tsv, "
        "whose quotes are ordinary characters, as in GLUE's files."
    )
    columns: ColumnsSection = Field(default=ColumnsSection(), description="Which columns hold what.")
    test_header: bool | None = Field(default=None, description="The same for the test file. If unset, as data.header.")
    test_columns: ColumnsSection | None = Field(
        default=None, description="All columns of the test file. If unset, as data.columns."
    )
    labels: tuple[str, ...] | Literal["number"] | None = Field(
        default=None,
        description='The names of all labels, whose positions become ids. "number": a regression. If unset, the '
        "sorted labels of the training file.",
    )
    skip_labels: tuple[str, ...] = Field(
        default=(),
        description='Labels whose examples are left out of training and dev sets, such as "-" in CMNLI. Those of test '
        "sets get predictions and are not scored.",
    )
    replace: dict[str, dict[str, str]] = Field(
        default={}, description="Values of text columns to replace by other texts, by the name of the column."
    )
    bad_rows: Literal["error", "drop"] = Field(
        default="error",
        description="What happens to a line with too few or too many fields, an example whose text is empty, and an "
        'answer that is not in its context. "drop" leaves them out of training and dev sets and logs how many; test '
        "sets keep them, with empty texts, but no sentence without words.",
    )
    find_answers: bool = Field(
        default=False,
        description="Move an answer that is not at its answer_start to the nearest place where its text is (kind "
        "span). Without it such an answer is an error.",
    )

    @field_validator("labels", "skip_labels", mode="before")
    @classmethod
    def _names_of_labels(cls, value: Any) -> Any:
        """Accept labels written as numbers or booleans, and turn them into the names that data files use for them."""
        if not isinstance(value, list | tuple):
            return value
        return tuple(label_name(label) for label in value)


RATES = ((192, 1e-3), (256, 3e-4), (512, 1e-4))
"""(width, learning rate) of encoders up to that wide: measured (docs/measurements.md), that of ELECTRA-Small
(arXiv:2003.10555), and between it and RATE_OF_BASE, BERT's (arXiv:1810.04805)."""
RATE_OF_BASE = 2e-5

ENOUGH_UPDATES = 400
FEWEST_EPOCHS = 3
MOST_EPOCHS = 20
"""Without `epochs` there are as many as make ENOUGH_UPDATES, between these: with less, little data is not learned, and
scores differ from seed to seed (Mosbach et al., arXiv:2006.04884)."""


class TaskTrainingSection(Section):
    """The values of fine-tuning."""

    epochs: int | None = Field(
        default=None,
        gt=0,
        description="Passes over the training set. Without it: as many as make about 400 updates, if each "
        "example is one row, but 3 at least and 20 at most.",
    )
    batch: int = Field(
        default=32,
        gt=0,
        description="Examples per update. A long context (kind span) counts once for each of its windows, as in BERT's "
        "run_squad.py, and a long sentence (kind tags) once for each of its parts.",
    )
    group_by_length: bool = Field(
        default=True,
        description="Whether a batch holds examples of similar length, which saves padding. Otherwise batches are "
        "drawn from all examples at random.",
    )
    lr: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="The highest learning rate, reached after the warmup. Without it: 1e-3 for an encoder up to 192 "
        "wide, and 3e-4 up to 256, 1e-4 up to 512 and 2e-5 above, after the papers of ELECTRA and BERT.",
    )
    layer_decay: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Factor between the learning rates of a layer and of the layer above it. 1 turns it off.",
    )
    weight_decay: float = Field(default=0.01, ge=0, description="Weight decay of AdamW. Biases and norms have none.")
    warmup_ratio: float = Field(
        default=0.1, ge=0, lt=1, description="Fraction of the updates over which the rate rises; then it falls to 0."
    )
    max_length: int = Field(default=128, ge=6, description="Tokens of a sequence, special tokens included.")
    stride: int = Field(
        default=64, ge=0, description="Tokens that two windows share (kind span): at most half of a row."
    )
    max_answer_tokens: int = Field(default=30, gt=0, description="Tokens of the longest answer (kind span).")
    null_threshold: float | Literal["best"] = Field(
        default=0.0,
        description="A question gets no answer if the score of no answer exceeds the score of the best span by more "
        'than this (kind span). "best": chosen on the dev set. Ignored if every training question has an answer.',
    )
    dropout: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="Dropout of the encoder and the head. If unset, as in the encoder's config.json.",
    )
    precision: Literal["fp32", "bf16"] = Field(default="fp32", description="Number format of the computation.")
    save_every: int = Field(
        default=500, gt=0, description="Steps between two saved states. The end of each epoch is saved as well."
    )


class TaskTrainerSection(Section):
    """Further arguments of transformers' Trainer, by their names there; what is unset has Trainer's default.

    Trainer's other arguments are those of `[training]` or the command line under another name, or they would change
    what a stopped fine-tuning continues from, what its scores mean, or what leaves this machine.
    """

    lr_scheduler_type: Schedule | None = Field(default=None, description="How the rate falls after the warmup.")
    lr_scheduler_kwargs: dict[str, Any] | None = Field(
        default=None,
        description="What the schedule takes in addition: min_lr or min_lr_rate, which the two with min_lr in their "
        "names need; num_decay_steps, which warmup_stable_decay needs; num_cycles (cosine and its kin), lr_end and "
        "power (polynomial), timescale (inverse_sqrt).",
    )
    optim: Optimizer | None = Field(default=None, description="The optimizer.")
    adam_beta1: Beta | None = Field(default=None, description="AdamW's decay rate of the mean of gradients.")
    adam_beta2: Beta | None = Field(default=None, description="AdamW's decay rate of the mean of squared gradients.")
    adam_epsilon: float | None = Field(default=None, gt=0, description="What AdamW adds to its denominator.")
    max_grad_norm: float | None = Field(
        default=None, ge=0, description="Norm to which gradients are clipped; 0: never."
    )
    gradient_accumulation_steps: int | None = Field(
        default=None, gt=0, description="Parts of a batch that are computed one after another, to save memory."
    )
    label_smoothing_factor: float | None = Field(
        default=None, ge=0, lt=1, description="Share of the target that all labels share (sentence, pair and tags)."
    )
    neftune_noise_alpha: float | None = Field(default=None, gt=0, description="NEFTune's noise in the embeddings.")
    activation_checkpointing: bool | None = Field(
        default=None, description="Whether to compute the activations of layers again, to save memory."
    )
    per_device_eval_batch_size: int | None = Field(default=None, gt=0, description="Features per batch in evaluation.")
    eval_accumulation_steps: int | None = Field(
        default=None, gt=0, description="Batches whose logits stay on the device before they are copied to the host."
    )
    dataloader_num_workers: int | None = Field(default=None, ge=0, description="Processes that put batches together.")
    tf32: bool | None = Field(default=None, description="Whether float32 products may use TF32 on a GPU.")
    report_to: str | list[str] | None = Field(
        default=None, description='Services to log to, such as "wandb" or "tensorboard", which must be installed.'
    )
    run_name: str | None = Field(default=None, description="The name of the fine-tuning in these services.")
    project: str | None = Field(default=None, description="The project of the fine-tuning in these services.")


class Task(Section):
    """A whole task: its kind, its files and the values of its training."""

    name: str = Field(min_length=1, description="The name of the task in reports.")
    kind: KindName = Field(
        description="sentence: a text gets a label. pair: two texts get a label. choice: one of several texts is "
        "right. tags: each word gets a label. span: the answer is a part of the context."
    )
    metrics: tuple[str, ...] = Field(
        min_length=1, description="How predictions are scored. The first metric chooses the best epoch."
    )
    source: str | None = Field(
        default=None, description="Where the files can be downloaded, for messages about missing files."
    )
    data: TaskDataSection = Field(description="The files of the task.")
    training: TaskTrainingSection = Field(default=TaskTrainingSection(), description="The values of fine-tuning.")
    trainer: TaskTrainerSection = Field(
        default=TaskTrainerSection(), description="Further arguments of transformers' Trainer."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, content: Any) -> Any:
        return fill_defaults(content) if isinstance(content, dict) else content

    def for_encoder(self, width: int, examples: int) -> Task:
        """Return the task with its learning rate and epochs, or where it has none, with those that suit its encoder.

        width: of the encoder. examples: in the training set.
        """
        training = self.training
        lr = training.lr or next((rate for most, rate in RATES if width <= most), RATE_OF_BASE)
        enough = ceil(ENOUGH_UPDATES * training.batch / examples)
        epochs = training.epochs or min(max(enough, FEWEST_EPOCHS), MOST_EPOCHS)
        return self.model_copy(update={"training": training.model_copy(update={"lr": lr, "epochs": epochs})})

    @property
    def is_regression(self) -> bool:
        return self.data.labels == NUMBER


def label_name(value: Any) -> str:
    """Return the name of a label that a file writes as text, number or boolean: 1 and 1.0 -> "1", True -> "true"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas writes whole numbers so if one is missing
    return str(value)
