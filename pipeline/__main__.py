"""`python -m pipeline`.

Nothing else is defined here: Beam's workers could not import what a `__main__` module defines.
"""

from clozeline.installation import end, run_explained
from pipeline.environment import look_for_cycles_seldom


def run() -> int:
    """Run a command of the pipeline and return the exit code."""
    look_for_cycles_seldom()
    from pipeline.cli import main

    return main()


if __name__ == "__main__":
    end(run_explained(run, "pipeline"))
