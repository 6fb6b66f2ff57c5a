"""`python -m trainer.export`: writes a checkpoint as a Hugging Face folder. The command line is in cli.py."""

from clozeline.installation import run_explained


def run() -> int:
    """Export and return the exit code."""
    from trainer.export.cli import main

    return main()


if __name__ == "__main__":
    raise SystemExit(run_explained(run, "export"))
