"""Entry point of `python -m trainer`, which torchrun and deepspeed use as well."""

from clozeline.installation import run_explained


def run() -> int:
    """Train and return the exit code."""
    from trainer.distributed.stop import StopRequest

    # Importing the command line takes seconds. Listen first, so that Ctrl-C during the import prints no traceback.
    stop = StopRequest().listen()

    from trainer.cli import main

    return main(stop=stop)


if __name__ == "__main__":
    raise SystemExit(run_explained(run, "trainer"))
