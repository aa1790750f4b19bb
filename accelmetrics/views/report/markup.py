"""Elements of HTML, built as trees: a text becomes text whatever it holds."""

from __future__ import annotations

from xml.etree.ElementTree import Element, tostring

from accelmetrics.schemas.text import printable

Child = Element | str | None


def element(tag: str, *children: Child, **attributes: object) -> Element:
    """Return an element.

    Args:
        tag: Its name.
        children: Elements and texts, in order; None is left out.
        attributes: ``stroke_width`` is ``stroke-width``, ``class_`` is ``class``; None is left out.
    """
    named = {name.rstrip("_").replace("_", "-"): _text(value) for name, value in attributes.items() if value is not None}
    found = Element(tag, named)
    add(found, *children)
    return found


def add(parent: Element, *children: Child) -> None:
    """Append elements and texts."""
    for child in children:
        if isinstance(child, Element):
            parent.append(child)
        elif child and len(parent):
            parent[-1].tail = (parent[-1].tail or "") + printable(child)
        elif child:
            parent.text = (parent.text or "") + printable(child)


def number(value: float) -> str:
    """Return a coordinate: less than a tenth of a unit cannot be seen."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def to_html(page: Element) -> str:
    """Return a page; the content of scripts and styles stands as it is, and is to hold no end of one."""
    return "<!DOCTYPE html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def _text(value: object) -> str:
    return number(value) if isinstance(value, float) else printable(str(value))
