"""Renders the pages that Clozeline writes: data cards and reports in HTML, model cards in Markdown.

Every HTML page is one self-contained file without scripts: the style sheet is inlined, drawings are inline SVG, and
nothing is loaded from elsewhere. The same values give the same bytes.

This package has what the pages share: base.html (the frame of a page), macros.html (tables, figures, axes) and
style.css. The templates of one page are in `templates/` next to the module that fills them in.
"""

from __future__ import annotations

from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def render(package: str, template: str, **values: object) -> str:
    """Return a template of `package`, filled in with `values`.

    Every value is escaped. Raises jinja2.UndefinedError if a value that the template needs is missing.
    Example: `render("trainer.metrics", "report.html", title="tiny", ...)`.
    """
    return _environment(package, is_html=True).get_template(template).render(**values)


def render_markdown(package: str, template: str, **values: object) -> str:
    """Like `render`, for a template of Markdown. Nothing is escaped."""
    return _environment(package, is_html=False).get_template(template).render(**values)


@cache
def _environment(package: str, is_html: bool) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates"), PackageLoader("schemas", "pages")]),
        autoescape=is_html,
        undefined=StrictUndefined,
        # A line with only a block tag leaves no empty line behind.
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["thousands"] = "{:,}".format
    environment.filters["fixed"] = lambda number, digits: f"{number:.{digits}f}"
    environment.filters["percent"] = lambda share, digits: f"{share:.{digits}%}"
    return environment
