"""`clozeline doctor`: whether training can start on this machine, and what to change.

finding       one line of the answer
plan          what is asked: a recipe, a folder, URLs
packages, device, build_tools, network, storage, speed   the checks, each a function from a plan to findings
command       runs all checks, and prints them as a table or as JSON

It trains nothing, needs no data and leaves nothing behind. A check that fails, even by a defect of ours, is a line of
the answer like any other. Nothing here imports torch before a check needs it, because it may be what is missing.
"""
