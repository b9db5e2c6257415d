"""XML answers of stores: parsed without anything that XML can do besides being a tree, namespaces left out."""

from xml.etree import ElementTree

from sidemount.stores.http_message import ExchangeFailed
from sidemount.stores.store import FaultKind

Element = ElementTree.Element
_NEVER = ("<!DOCTYPE", "<!ENTITY", "\0")  # the parser takes a text with NULs for UTF-16


def parse(body: bytes, root: str) -> Element:
    """Return the root element. Raises ExchangeFailed (ANSWER) if it is not called that or this is no such XML."""
    return parse_text(text_of(body), root)


def text_of(body: bytes) -> str:
    """Return the text of an answer that is XML without a document type, if it is XML. Raises ExchangeFailed (ANSWER) if it cannot be."""
    try:
        text = body.decode(
            "utf-8-sig"
        ).lstrip()  # in any other encoding it could hide what is looked for here
    except UnicodeDecodeError as error:
        raise ExchangeFailed(FaultKind.ANSWER, "the answer is no XML", sent=True) from error
    if any(mark in text for mark in _NEVER):
        raise ExchangeFailed(FaultKind.ANSWER, "the answer declares a document type", sent=True)
    return text


def parse_text(text: str, root: str) -> Element:
    """Return the root element of what `text_of` has returned. Raises ExchangeFailed (ANSWER) if it is not called that or this is no XML."""
    try:
        found = ElementTree.fromstring(text)  # noqa: S314  # no document type, so no entities
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
