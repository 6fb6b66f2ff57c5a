"""What all pages share: escaping, the style sheet, and a package that holds its templates."""

import re
from importlib.resources import files

import pytest
from jinja2 import UndefinedError
from markupsafe import escape

from schemas.pages import render

STYLE = files("schemas.pages").joinpath("style.css").read_text()
HOSTILE = "</style><script>alert('1')</script>{{ title }}"


def frame(title: str) -> str:
    """The frame alone, without a page's content."""
    return render("pipeline", "base.html", title=title)


def test_values_are_escaped_and_never_taken_for_a_template() -> None:
    page = frame(HOSTILE)
    assert "<script" not in page
    # In the title of the window and in the heading.
    assert page.count(str(escape(HOSTILE))) == 2


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="title"):
        render("pipeline", "base.html")


def test_colors_are_defined_for_light_and_dark() -> None:
    used = set(re.findall(r"var\((--[\w-]+)\)", STYLE))
    defined = set(re.findall(r"(--[\w-]+):", STYLE))
    assert used <= defined

    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    light_colors = set(re.findall(r"(--[\w-]+): #", light))
    dark_colors = set(re.findall(r"(--[\w-]+): #", dark))
    assert light_colors == dark_colors
