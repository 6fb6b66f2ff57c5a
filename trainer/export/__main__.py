"""`python -m trainer.export`: writes a checkpoint as a Hugging Face folder. The implementation is in convert.py."""

from clozeline.installation import run_explained


def run() -> int:
    """Export and return the exit code."""
    from trainer.export.convert import main

    return main()


if __name__ == "__main__":
    raise SystemExit(run_explained(run, "export"))
