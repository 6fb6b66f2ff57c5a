"""`python -m trainer.export`: writes a checkpoint as a Hugging Face folder. The command itself is in convert.py."""

from trainer.export.convert import main

if __name__ == "__main__":
    raise SystemExit(main())
