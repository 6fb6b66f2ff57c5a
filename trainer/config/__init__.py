"""The recipe of a run: its keys, how it is read and checked, and how it and its changes are recorded.

sections, schema   the tables of a recipe, key by key, and the whole recipe
parse      TOML content and `--set section.key=value` to a Recipe, or an error that names every wrong key
validate   cross-field validation
phases     several phases in one run
load       recipes by name or by file
record     a recipe as TOML, its changes at resumes, and what a model card shows of both
document   docs/recipes.md and the list of shipped recipes
"""
