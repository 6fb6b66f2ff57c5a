"""The command `clozeline`: one name for the programs of `pipeline` and `trainer`.

cli            the commands, and which program each starts
installation   explains what is missing or in the way: an extra, or another project's module
"""

__version__ = "0.1.0"
