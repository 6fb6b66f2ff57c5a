"""`python -m trainer.export`."""

from trainer.export.convert import main

if __name__ == "__main__":
    raise SystemExit(main())
