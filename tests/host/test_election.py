"""Leading by a Lease, where the API server's answers are lost; tests/certs has the rest."""

from datetime import UTC, datetime
from typing import Any

import pytest

from sidemount.host.election import Election, lease_place
from sidemount.model.errors import NotReady

Json = dict[str, Any]


class LosingServer:
    """Takes every write, and loses the first answer."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self.writes = 0

    async def read(self, _: object) -> Json:
        return self.document

    async def replace(self, _: object, document: Json) -> Json:
        self.document = document
        self.writes += 1
        if self.writes == 1:
            raise NotReady("the API server does not answer in time")
        return document


@pytest.mark.asyncio
async def test_who_led_before_is_known_even_if_the_answer_to_taking_over_was_lost() -> None:
    """Whoever leads then begins where its predecessor ended, not with what it has told already."""
    renewed = "2026-01-01T00:00:00.000000Z"
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "", "renewTime": renewed}}
    server: Any = LosingServer(lease)
    election = Election(
        server,
        lease_place("ns", "l"),
        "me",
        wall=lambda: datetime(2026, 1, 1, 0, 1, tzinfo=UTC),
        monotonic_s=lambda: 0.0,
    )
    with pytest.raises(NotReady):
        await election.step()
    led = [election.leads]
    await election.step()
    assert [*led, election.leads] == [False, True]
    assert election.predecessor is not None
    assert election.predecessor.renewed == renewed
