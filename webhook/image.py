"""Image references of our containers: which of those that others write in their place the operator allows.

Webhooks that send images through a mirror rewrite every container, ours too, and while the webhook itself is upgraded one round
may be answered by the old version and the next by the new. The code that runs must be the operator's choice all the same.
"""

import re
from dataclasses import dataclass

_VERSION = re.compile(r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?(?:@[A-Za-z0-9_+.-]+:[0-9a-fA-F]+)?\Z")


@dataclass(frozen=True, slots=True)
class Registries:
    """Where our images may come from: `prefix` is put before them by us, `mirrors` by other webhooks."""

    prefix: str = ""
    mirrors: tuple[str, ...] = ()

    def prefixed(self, image: str) -> str:
        """Return an image as we write it."""
        return f"{self.prefix.rstrip('/')}/{image}" if self.prefix else image

    def is_ours(self, found: object, rendered: str) -> bool:
        """Say whether an image is of the repository that we write, or of the same one through a mirror; in any version."""
        return isinstance(found, str) and _repository(found) in self._repositories(rendered)

    def is_current(self, found: object, rendered: str) -> bool:
        """Say whether an image can stay as it is: what we write, or that very version through a mirror."""
        if found == rendered:
            return True
        is_mirrored = isinstance(found, str) and any(
            found.startswith(mirror.rstrip("/") + "/") for mirror in self.mirrors
        )
        return is_mirrored and self.is_ours(found, rendered) and _version(str(found)) == _version(rendered)

    def _repositories(self, rendered: str) -> frozenset[str]:
        whole = _repository(rendered)
        plain = whole.removeprefix(self.prefixed(""))
        host, slash, path = plain.partition("/")
        short = path if slash and ("." in host or ":" in host or host == "localhost") else plain
        each = [f"{mirror.rstrip('/')}/{name}" for mirror in self.mirrors for name in (whole, plain, short)]
        return frozenset({whole, plain, *each})


def _repository(image: str) -> str:
    return image[: len(image) - len(_version(image))]


def _version(image: str) -> str:
    """Return tag and digest. A colon before the last slash belongs to a registry's port."""
    start = image.rfind("/", 0, image.find("@") if "@" in image else len(image)) + 1
    found = _VERSION.search(image, start)
    return found[0] if found is not None else ""
