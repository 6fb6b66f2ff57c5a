"""What a model card shows of a recipe: neither paths nor what only looks like one is left out by mistake."""

from trainer.config.changes import RecipeChange
from trainer.config.public import changes_without_paths, without_paths


def test_paths_are_left_out_and_percentages_are_not() -> None:
    content = {
        "data": {"pairs": "out/pairs", "cache_gigabytes": 50.0},
        "masking": {"replacement": "80/10/10", "prob": 0.15},
        "deepspeed": {"comment": "~/notes", "dumps": ["C:\\dumps"], "name": "x"},
    }
    assert without_paths(content) == {
        "data": {"cache_gigabytes": 50.0},
        "masking": {"replacement": "80/10/10", "prob": 0.15},
        "deepspeed": {"name": "x"},
    }


def test_a_change_of_percentages_is_shown() -> None:
    change = RecipeChange(step=5, key="masking.replacement", before="80/10/10", now="100/0/0")
    moved = RecipeChange(step=5, key="run.output", before="/a", now="/b")
    assert changes_without_paths([change, moved]) == [change]
