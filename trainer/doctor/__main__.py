"""Entry point of `python -m trainer.doctor`."""

from clozeline.installation import run_explained


def run() -> int:
    """Run the command and return the exit code."""
    from trainer.doctor.command import main

    return main()


if __name__ == "__main__":
    raise SystemExit(run_explained(run, "trainer"))
