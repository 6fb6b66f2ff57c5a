"""`clozeline doctor`: checks whether training can start on this machine, and says what to change.

finding              the result of one check, a line of the answer
plan                 what to check: a recipe, a folder, URLs
packages, device, memory, network, storage, speed    the checks, each a function from a plan to findings
shape, micro_batch   what the checks know about a recipe's model and micro-batches
command              runs all checks, and prints them as a table or as JSON

It trains nothing, needs no data and leaves nothing behind. A check that raises an error, even because of a bug, is a
line of the answer like any other. Nothing here imports torch before a check needs it, because torch may be missing.
"""
