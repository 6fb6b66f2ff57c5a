"""The recipe of a run: what may stand in it, how it is read, and what else of it is written down.

section, model_section, training_sections, run_sections   the tables of a recipe, key by key
schema          the whole recipe
parse           TOML content to a Recipe, or an error that names every wrong key
overrides       `--set section.key=value`
validate        keys that must fit each other
phases          several phases in one run
shipped, load   recipes by name or by file
text, changes, public   a recipe as TOML, its changes at resumes, and what of it may be published
document        writes docs/recipes.md
"""
