"""XML answers of stores: parsed without anything that XML can do besides being a tree, namespaces left out."""

from xml.etree import ElementTree

from sidemount.stores.http_message import ExchangeFailed
from sidemount.stores.store import FaultKind

Element = ElementTree.Element


def parse(body: bytes, root: str) -> Element:
    """Return the root element. Raises ExchangeFailed (ANSWER) if it is not called that or this is no such XML."""
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise ExchangeFailed(FaultKind.ANSWER, "the answer declares a document type", sent=True)
    try:
        found = ElementTree.fromstring(body.lstrip())  # noqa: S314  # no document type, so no entities
    except ElementTree.ParseError as error:
        raise ExchangeFailed(FaultKind.ANSWER, "the answer is no XML", sent=True) from error
    if name_of(found) != root:
        raise ExchangeFailed(FaultKind.ANSWER, f"the answer is {name_of(found)[:40]}, not {root}", sent=True)
    return found


def name_of(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def texts(element: Element) -> dict[str, str]:
    """Return the texts of the children by name; the first of each."""
    found: dict[str, str] = {}
    for child in element:
        found.setdefault(name_of(child), child.text or "")
    return found


def escape(text: str) -> str:
    """Return text as the content of an element. ValueError if XML cannot say it."""
    if any(
        (char < " " and char not in "\t\n") or char in "\ufffe\uffff" or "\ud800" <= char < "\ue000"
        for char in text
    ):
        raise ValueError("a character that XML cannot say")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
