"""`clozeline demo`: all of Clozeline in two to three minutes, on the documentation that Python carries."""
