"""`python -m trainer`, also as started by torchrun and deepspeed."""

from trainer.command_line import main

if __name__ == "__main__":
    raise SystemExit(main())
