# What type checking sees of transformers: anything. Its own modules take a minute to analyze.
from typing import Any

def __getattr__(name: str) -> Any: ...
