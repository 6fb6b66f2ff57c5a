"""The kinds of tasks: each turns examples into rows of tokens, and the model's outputs into predictions."""
