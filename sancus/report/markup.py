"""HTML that cannot be broken by a name: text is escaped unless it was made here.

`tag` escapes every child that is not itself `Markup`, and every attribute. Nothing on a page is put
together in any other way.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


class Markup(str):
    """Text that is HTML already, and is therefore not escaped again."""


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """`<name …>children</name>`; `class_` is `class`, `aria_label` is `aria-label`, `None` is left out."""
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{attribute_text}>{join(children)}</{name}>")


def join(children: Iterable[str]) -> Markup:
    """Children one after the other, escaped where they are plain text."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A table with its caption below, where it does not scroll away."""
    return join([plain_table(head, rows, caption), tag("p", caption, class_="note")])


def plain_table(head: Sequence[str], rows: Iterable[Sequence[str]], name: str) -> Markup:
    """A table whose first column names its rows; it scrolls sideways by itself where it is too wide."""
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    top = [tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head)))] if head else []
    whole = tag("table", *top, tag("tbody", *body), class_=None if head else "pairs")
    return tag("div", whole, class_="scroll", role="region", tabindex="0", aria_label=name)
