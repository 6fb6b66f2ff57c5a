"""Whether a recipe's model, its optimizer's state and one micro-batch fit into the memory of one device here."""

from __future__ import annotations

from trainer.doctor.device import device_memory
from trainer.doctor.finding import Finding
from trainer.doctor.micro_batch import micro_batch_here
from trainer.doctor.plan import Plan
from trainer.doctor.shape import shape_of


def check_memory(plan: Plan) -> list[Finding]:
    """Compare what the recipe needs on one rank, alone on this machine, with its device; nothing without a recipe."""
    if plan.recipe is None:
        return []
    from trainer.memory import activation_bytes, held_bytes
    from trainer.trial_pass import count_parameters

    shape, longest, _ = shape_of(plan.recipe)
    parameters = count_parameters(shape, plan.recipe)
    tokens = micro_batch_here(plan.recipe, shape, longest)
    needed = held_bytes(parameters, plan.recipe, 1) + tokens * activation_bytes(shape, plan.recipe)
    available = device_memory()

    facts = {
        "needed_bytes": round(needed),
        "available_bytes": available,
        "parameters": parameters.all,
        "micro_batch_tokens": tokens,
    }
    value = (
        f"one rank needs {needed / 1e9:.1f} of {available / 1e9:.1f} GB for {parameters.all:,} parameters and "
        f"{tokens:,} tokens at once"
    )
    if needed <= available:
        return [Finding("memory", "ok", value, facts=facts)]

    advice = (
        "Lower batch.micro_batch or batch.micro_tokens, use more ranks with a higher engine.zero_stage, or set "
        "engine.recompute=true."
    )
    return [Finding("memory", "warning", value, advice, facts)]
