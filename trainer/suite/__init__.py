"""Suites: many tasks, several models and seeds, one table: `clozeline suite FOLDER... --suite glue`."""
