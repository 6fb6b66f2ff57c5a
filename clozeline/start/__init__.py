"""`clozeline start FOLDER`: from a folder of files to an encoder, by the commands that it prints.

    look.py        what the files are, how much text they hold and in which languages
    decide.py      the values of every step for that text, this machine and the hours, each with its reason
    plan_file.py   OUTPUT/clozeline.toml, which has these values, and the commands that they make
    steps.py       checks the commands, then runs one after another; repeats only what a change concerns
    blanks.py      fills in blanks with the finished model

The steps are the other commands of `clozeline`, so nothing can be made here that they do not make.
"""
