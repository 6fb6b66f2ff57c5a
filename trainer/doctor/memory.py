"""Checks that training fits into the memory of each device, and copies of its checkpoints into host memory."""

from __future__ import annotations

from trainer.config.schema import Recipe
from trainer.doctor.device import count_devices, device_memory
from trainer.doctor.finding import Finding
from trainer.doctor.micro_batch import micro_batch_here
from trainer.doctor.plan import Plan
from trainer.doctor.shape import shape_of


def check_memory(plan: Plan) -> list[Finding]:
    """Check device and host memory, with one rank on each device. Returns no findings without a recipe."""
    if plan.recipe is None:
        return []
    from trainer.memory import count_parameters
    from trainer.trial_pass import meta_model

    shape, longest, _ = shape_of(plan.recipe)
    parameters = count_parameters(meta_model(shape))
    tokens = micro_batch_here(plan.recipe, shape, longest)
    findings = [check_device_memory(plan.recipe, parameters, tokens)]
    if plan.recipe.checkpoint.background:
        findings.append(check_host_memory(parameters))
    return findings


def check_device_memory(recipe: Recipe, parameters: int, tokens: int) -> Finding:
    """Compare what a rank needs with the memory of its device. tokens: of its micro-batch."""
    from trainer.memory import activation_bytes, held_bytes, working_bytes

    shape, _, _ = shape_of(recipe)
    ranks = count_devices()
    bytes_per_token = activation_bytes(shape, recipe) + working_bytes(shape, recipe)
    needed = held_bytes(parameters, recipe, ranks) + tokens * bytes_per_token
    available = device_memory()

    facts = {
        "needed_bytes": round(needed),
        "available_bytes": available,
        "parameters": parameters,
        "micro_batch_tokens": tokens,
        "ranks": ranks,
    }
    each = "the rank needs" if ranks == 1 else f"each of {ranks} ranks needs"
    value = (
        f"{each} {needed / 1e9:.1f} of {available / 1e9:.1f} GB for {parameters:,} parameters and micro-batches of "
        f"{tokens:,} tokens"
    )
    if needed <= available:
        return Finding("memory", "ok", value, facts=facts)

    advice = (
        "Lower batch.micro_batch or batch.micro_tokens, use more ranks with a higher engine.zero_stage, or set "
        "engine.recompute=true."
    )
    return Finding("memory", "warning", value, advice, facts)


def check_host_memory(parameters: int) -> Finding:
    """Compare the size of the copies for saving in the background with the host memory available for them."""
    from schemas.host_limits import available_bytes
    from trainer.checkpoint.snapshot import SHARE_OF_MEMORY, WASTED_SHARE
    from trainer.memory import saved_bytes

    needed = round(saved_bytes(parameters) * (1 + 1 / WASTED_SHARE))
    available = round(SHARE_OF_MEMORY * available_bytes())
    facts = {"needed_bytes": needed, "available_bytes": available}
    value = f"copies for saving in the background take {needed / 1e9:.1f} of {available / 1e9:.1f} GB"
    if needed <= available:
        return Finding("host memory", "ok", value, facts=facts)

    advice = "Without the copies, training stops while a checkpoint is written. Free memory, or use more machines."
    return Finding("host memory", "warning", value, advice, facts)
