"""`python -m trainer`, also as started by torchrun and deepspeed."""

from trainer.distributed.preemption import StopRequest


def run() -> int:
    """Train and return the exit code."""
    # The imports of the command line take a while. An interrupt during them must end without a traceback, too.
    stop = StopRequest().listen()

    from trainer.cli import main

    return main(stop=stop)


if __name__ == "__main__":
    raise SystemExit(run())
