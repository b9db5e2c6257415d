"""Pages of a list that changes while it is read: a token names the last id that was told, so nothing is told twice or left out."""

from collections.abc import Sequence

from csi.volume_ids import is_id
from sidemount.model.errors import InvalidRequest, OperationPending, shown

_TOKEN = "after-"  # noqa: S105 - a page's, no credential
_ANSWER_MAX_BYTES = 3 << 20  # a client takes 4 MiB


def check_page(max_entries: int) -> None:
    """See that a page may be so long. Raises InvalidRequest."""
    if max_entries < 0:
        raise InvalidRequest(f"max_entries {max_entries} is negative")


def after_token(places: Sequence[tuple[str, str]], token: str) -> Sequence[tuple[str, str]]:
    """Return those after what a token names; "" is the beginning. Raises OperationPending, as CSI has it, for one of nobody's."""
    if not token:
        return places
    last = token.removeprefix(_TOKEN)
    if last == token or not is_id(last):
        raise OperationPending(
            f"starting_token {shown(token)} is none of this plugin's", hint="begin without a token"
        )
    return [place for place in places if place[0] > last]


def token_of(last: str) -> str:
    """Return the token of a page that ends with an id."""
    return f"{_TOKEN}{last}"


def page_length(sizes: Sequence[int], max_entries: int) -> int:
    """Return how many of the entries, each of so many bytes, go into one answer. Never 0 if there is one."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and (total > _ANSWER_MAX_BYTES or (max_entries and count >= max_entries)):
            return count
    return len(sizes)
