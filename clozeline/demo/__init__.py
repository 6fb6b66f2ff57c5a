"""`clozeline demo`: all of Clozeline in two minutes, on the documentation that Python carries."""
