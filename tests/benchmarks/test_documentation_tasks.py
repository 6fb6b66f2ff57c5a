"""What the tasks of finetune_kinds.py ask: marks are gone, answers are where they say, nothing held out is seen."""

import random
from collections.abc import Iterator

import pytest

from benchmarks import documentation_tasks
from benchmarks.documentation_tasks import Module, Modules, paragraphs_of, tagged

DOCSTRING = """Return the mean of an array along the axis `axis`. NaNs are passed on by ``np.mean`` in version 2.

The sum is divided by the number of values, as in `~numpy.average`, unless an array of weights is given.

The result has the type ``float64``, except that sums such as ``a + b`` of complex numbers are complex numbers, too.

    >>> mean([1, 2])
"""


def test_names_lose_their_backquotes_and_keep_their_place() -> None:
    paragraph, *_ = paragraphs_of(DOCSTRING)
    line = tagged(paragraph)
    named = [word for word, tag in zip(line["words"], line["tags"], strict=True) if tag.endswith("NAME")]
    assert named == ["axis", "np", ".", "mean"]
    assert [tag for tag in line["tags"] if tag != "O"] == ["B-NAME", "B-NAME", "I-NAME", "I-NAME", "B-NUMBER"]
    assert not any("`" in word for word in line["words"])


def test_the_answer_is_the_only_code_and_stands_where_it_is_said_to() -> None:
    module = Module("numpy", DOCSTRING, paragraphs=list(paragraphs_of(DOCSTRING)))
    (line,) = documentation_tasks.mentioned_name([module], random.Random(0))
    (answer,) = line["answers"]
    start = answer["answer_start"]
    assert answer["text"] == "numpy.average"
    assert line["context"][start : start + len(answer["text"])] == answer["text"]
    assert "`" not in line["context"]


@pytest.fixture(scope="module")
def modules() -> Iterator[Modules]:
    """The documentation of one small package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documentation_tasks, "PACKAGES", ("sklearn",))
        yield documentation_tasks.read_modules()


def test_no_held_out_paragraph_is_trained_on(modules: Modules) -> None:
    trained = {paragraph for module in modules.training for paragraph in module.paragraphs}
    held_out = {paragraph for module in modules.held_out for paragraph in module.paragraphs}
    assert len(trained) > len(held_out) > 50 and not trained & held_out


def test_the_right_choice_follows_and_the_others_do_not(modules: Modules) -> None:
    lines = documentation_tasks.which_sentence_follows(modules.held_out, random.Random(0))
    follows = {pair for module in modules.held_out for pair in documentation_tasks.followed_sentences(module)}
    assert all((line["context"], line["choices"][line["label"]]) in follows for line in lines)
    assert {line["label"] for line in lines} == set(range(documentation_tasks.CHOICES))
