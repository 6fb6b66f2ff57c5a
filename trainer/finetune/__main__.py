"""`python -m trainer.finetune`, which torchrun and deepspeed use as well. The command itself is in cli.py."""

from clozeline.installation import run_explained


def run() -> int:
    from trainer.distributed.stop import StopRequest

    # Importing the command line takes seconds. Listen first, so that Ctrl-C during the import prints no traceback.
    stop = StopRequest().listen()

    from trainer.finetune.cli import main

    return main(stop=stop)


if __name__ == "__main__":
    raise SystemExit(run_explained(run, "finetune"))
