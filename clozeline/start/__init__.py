"""`clozeline start FOLDER`: from a folder of files to an encoder, by the commands that it prints.

    cli.py         the command line, which needs no extra
    start.py       what it does, one thing after another
    decide.py      the values of every step for that text, this machine and the hours, each with its reason
    plan_file.py   OUTPUT/clozeline.toml, which has these values, and the commands that they make
    steps.py       checks the commands, then runs one after another; repeats only what a change concerns
    closing.py     says what came out
    blanks.py      fills in blanks with the finished model

The steps are the other commands of `clozeline`, so nothing can be made here that they do not make.
"""

DEFAULT_HOURS = 0.17
"""Of training, unless --hours says otherwise: ten minutes."""
