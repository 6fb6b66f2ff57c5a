"""The recipe of a run: its keys, how it is read and checked, and how it and its changes are recorded.

section, model_section, training_sections, run_sections   the tables of a recipe, key by key
schema          the whole recipe
parse           TOML content to a Recipe, or an error that names every wrong key
overrides       `--set section.key=value`
validate, validate_model   cross-field validation
phases          several phases in one run
shipped, load   recipes by name or by file
text, changes, public   a recipe as TOML, its changes at resumes, and what must not be published
overview        the list of shipped recipes
document        writes docs/recipes.md
"""
