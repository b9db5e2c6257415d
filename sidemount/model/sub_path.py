"""Sub-paths: the lexical rules, before any mount is looked at. Standard library only: the keeper imports it."""

import unicodedata

SUB_PATH_MAX_BYTES = 4096


def unprintable_fault(text: str) -> str:
    """Return why a text cannot be a name or path: a control character or half a surrogate pair; "" if it can."""
    if text.isascii() and text.isprintable():
        return ""
    for char in text:
        category = unicodedata.category(char)
        if char == "\0":
            return "holds a NUL character"
        if category == "Cc":
            return f"holds the control character U+{ord(char):04X}"
        if category == "Cs":
            return "is not valid Unicode (an unpaired surrogate)"
    return ""


def sub_path_fault(sub_path: str) -> str:
    """Return why a sub-path is refused, "" if it is fine. The empty sub-path is the root."""
    if not sub_path:
        return ""
    if len(sub_path.encode("utf-8", "surrogatepass")) > SUB_PATH_MAX_BYTES:
        return f"is longer than {SUB_PATH_MAX_BYTES} bytes"
    fault = unprintable_fault(sub_path)
    if fault:
        return fault
    if sub_path.startswith("/"):
        return "is absolute; it must be relative to the volume's root"
    for component in sub_path.split("/"):
        if not component:
            return "has an empty component"
        if component in (".", ".."):
            return f'has the component "{component}"'
    return ""


def join_sub_paths(root: str, sub_path: str) -> str:
    """Return `sub_path` taken beneath `root`; both must have passed `sub_path_fault`, so neither can leave it."""
    return f"{root}/{sub_path}" if root and sub_path else root or sub_path
