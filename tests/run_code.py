"""Runs Python code as `python -c` does, but a test can fork it: python -m tests.run_code CODE WORD..."""

import sys

if __name__ == "__main__":
    code, *sys.argv[1:] = sys.argv[1:]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
