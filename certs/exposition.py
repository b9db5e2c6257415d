"""What `certs rotate` answers its probes."""

from certs.standing import Standing, StandingCollector
from sidemount.host.exposition import Exposition, Verdict


def exposition_of(standing: Standing) -> Exposition:
    """Return the pages `/startz`, `/livez`, `/readyz` and `/metrics`."""

    def started() -> Verdict:
        return Verdict("" if standing.is_started() else standing.fault or "no certificate is in place yet")

    def alive() -> Verdict:
        return Verdict("" if standing.is_alive() else "nothing was looked at for too long")

    def ready() -> Verdict:
        return Verdict(standing.missing(), standing.told())

    return Exposition({"/startz": started, "/livez": alive, "/readyz": ready}, StandingCollector(standing))
