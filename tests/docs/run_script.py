"""Runs a script, with the libraries imported already where a test forks it: python -m tests.docs.run_script FILE"""

import runpy
import sys

if __name__ == "__main__":
    runpy.run_path(sys.argv[1], run_name="__main__")
