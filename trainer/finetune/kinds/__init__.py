"""The kinds of tasks: how examples become rows of tokens, and what the model computes becomes predictions."""
