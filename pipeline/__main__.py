"""`python -m pipeline`. Nothing else lives here: what is defined in `__main__` cannot be sent to Beam's workers."""

from pipeline.command_line import main

if __name__ == "__main__":
    raise SystemExit(main())
