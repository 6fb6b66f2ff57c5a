"""The whole recipe: every setting of a run with its type, bounds, default and description.

The tables themselves are in model_section.py, training_sections.py (data and learning) and run_sections.py (how a run
proceeds). validate.py has the cross-field validation, and load.py reads a recipe from its file.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trainer.config.model_section import ModelSection
from trainer.config.run_sections import (
    AnomalySection,
    CheckpointSection,
    EngineSection,
    EvaluationSection,
    RunSection,
)
from trainer.config.section import Section
from trainer.config.training_sections import (
    BatchSection,
    DataSection,
    MaskingSection,
    ObjectiveSection,
    OptimizerSection,
    ScheduleSection,
)

__all__ = [
    "AnomalySection",
    "BatchSection",
    "CheckpointSection",
    "DataSection",
    "EngineSection",
    "EvaluationSection",
    "MaskingSection",
    "ModelSection",
    "ObjectiveSection",
    "OptimizerSection",
    "PhaseSection",
    "Recipe",
    "RunSection",
    "ScheduleSection",
]


class PhaseSection(Section):
    """One phase of a run, and what is different in it.

    Data, batches and masks of a phase are counted from its first step. Each phase ends with a checkpoint, from which
    the next one starts. Causal LM before masked LM, whose rate of masks falls:

    ```toml
    [run]
    max_steps = 100000

    [[phases]]
    steps = 25000
    objective = { kind = "clm" }

    [[phases]]
    steps = 75000
    masking = { prob = 0.3, final_prob = 0.15 }
    ```
    """

    steps: int = Field(gt=0, description="Number of steps. The steps of all phases must add up to run.max_steps.")
    model: dict[str, Any] = Field(
        default={},
        description="Keys of [model] that replace the run's in this phase. Only those that leave the weights as they "
        "are: rope_base, window_rope_base, window, global_every, and the two dropout probabilities.",
    )
    data: dict[str, Any] = Field(default={}, description="Keys of [data] that replace the run's in this phase.")
    masking: dict[str, Any] = Field(default={}, description="Keys of [masking] that replace the run's in this phase.")
    objective: dict[str, Any] = Field(
        default={}, description="Keys of [objective] that replace the run's in this phase."
    )
    optimizer: dict[str, Any] = Field(
        default={}, description="Keys of [optimizer] that replace the run's in this phase."
    )
    schedule: dict[str, Any] = Field(
        default={},
        description="Keys of [schedule] that replace the run's, for a schedule that is counted from the phase's first "
        "step. If empty, the run's schedule continues.",
    )
    batch: dict[str, Any] = Field(default={}, description="A complete [batch] for this phase. If empty, the run's.")


class Recipe(Section):
    """A whole run."""

    model: ModelSection = Field(description="The shape of the network.")
    data: DataSection = Field(description="Where the rows come from.")
    masking: MaskingSection = Field(default=MaskingSection(), description="How tokens are masked as rows are read.")
    objective: ObjectiveSection = Field(default=ObjectiveSection(), description="What is predicted.")
    optimizer: OptimizerSection = Field(description="How the weights are updated.")
    schedule: ScheduleSection = Field(default=ScheduleSection(), description="The learning rate over the run.")
    batch: BatchSection = Field(description="How much one step computes, and in which pieces.")
    run: RunSection = Field(description="Where the run lies and how long it is.")
    evaluation: EvaluationSection = Field(
        default=EvaluationSection(), description="Measuring the model on held-out pairs."
    )
    checkpoint: CheckpointSection = Field(default=CheckpointSection(), description="Saving the state of the run.")
    engine: EngineSection = Field(default=EngineSection(), description="How DeepSpeed computes.")
    anomaly: AnomalySection = Field(
        default=AnomalySection(), description="What happens when the loss or the gradient is NaN or spikes."
    )
    phases: list[PhaseSection] = Field(default=[], description="Phases of the run, each with its own data and rates.")
    deepspeed: dict[str, Any] = Field(
        default={}, description="Passed on to DeepSpeed's configuration. Any other key than these is refused."
    )

    @property
    def predicted_share(self) -> float:
        """The share of tokens that are predicted, at the step at which it is largest."""
        if self.objective.kind == "clm":
            return 1.0
        return max(self.masking.prob, self.masking.final_prob or 0.0)
