"""`python -m trainer.suite`. The command itself is in cli.py."""

from clozeline.installation import run_explained


def run() -> int:
    from trainer.suite.cli import main

    return main()


if __name__ == "__main__":
    raise SystemExit(run_explained(run, "trainer"))
