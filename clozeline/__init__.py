"""The command `clozeline`, which starts the programs of `pipeline` and `trainer`.

cli            the commands, and the program that each starts
installation   explains a broken installation: a missing extra, or a clash with another project's module
"""

__version__ = "0.1.0"
