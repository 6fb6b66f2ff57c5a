"""Checks that a folder may hold an encoder, before transformers, which takes seconds to load, opens it."""

from __future__ import annotations

from pathlib import Path

from schemas.errors import UsageError

ADVICE = "Give the folder of a downloaded model, or one that `clozeline export` wrote."


def check_encoder_folder(folder: str, further_advice: str = "") -> None:
    """Raise UsageError unless a folder has the configuration of a Hugging Face encoder.

    further_advice: what else can be done with the folder of a run, as the end of a sentence.
    """
    path = Path(folder)
    if (path / "config.json").is_file():
        return

    if not path.exists():
        raise UsageError(f"{folder} does not exist. {ADVICE}")
    if (path / "recipe.toml").is_file():
        raise UsageError(
            f"{folder} has no config.json, so it is not an encoder in the Hugging Face format. It is the folder of a "
            f"run: `clozeline export` writes its encoder{further_advice}."
        )
    raise UsageError(f"{folder} has no config.json, so it is not an encoder in the Hugging Face format. {ADVICE}")
