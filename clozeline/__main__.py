"""`python -m clozeline`: the same program as the command `clozeline`."""

from clozeline.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
