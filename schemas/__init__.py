"""The contract between the two halves of Clozeline: file formats, identities and the meaning of a mask.

`pipeline` writes what is described here and `trainer` reads it; neither imports the other. Nothing here imports Beam or
torch, so both halves can load it on a machine that has only one of them.
"""

FORMAT_VERSION = 2
"""Written into every manifest. Readers refuse any other version; raise it when the meaning of anything changes."""
