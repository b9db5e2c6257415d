"""`python -m certs rotate`: the process that keeps a webhook's certificate, and the trust in it, in order."""

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime

from certs.api_clock import ApiClock
from certs.exposition import exposition_of
from certs.rotate_settings import RotateSettings
from certs.rotator import Rotator
from certs.standing import Standing
from sidemount.host import logs
from sidemount.host.cluster import Cluster
from sidemount.host.cluster_configuration import load_cluster_configuration
from sidemount.host.election import Election, lease_place
from sidemount.model.errors import HostFailure, VolumeError
from sidemount.model.lease import RENEW_EVERY_S

_RESIGN_S = 3.0
_log = logs.log("certs.rotate")


def default_identity() -> str:
    """Return a name for a Lease that tells the pod, and that no earlier process of it had."""
    return f"{socket.gethostname() or 'unknown'}_{secrets.token_hex(4)}"


def run_rotate(settings: RotateSettings, announce: Callable[[str], None]) -> None:
    """Rotate until SIGTERM or SIGINT. `announce` is called once, when everything runs.

    Raises: InvalidRequest or HostFailure if it cannot start.
    """
    logs.configure("certs", level=settings.log_level)
    # The client's own debug lines may show what it sends.
    logging.getLogger("kubernetes").setLevel(logging.INFO)
    try:
        asyncio.run(_rotate(settings, announce))
    except VolumeError:
        raise
    except Exception as error:
        # The trace is for the log; a person gets a line.
        _log.error("ended", exc_info=True)
        raise HostFailure(f"ended by {type(error).__name__}, see the log") from error


async def _rotate(settings: RotateSettings, announce: Callable[[str], None]) -> None:
    configuration = await load_cluster_configuration(settings.kubeconfig)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    clock = ApiClock(_wall, time.monotonic)
    standing = Standing(time.monotonic, stepped_at_s=time.monotonic())
    exposition = exposition_of(standing)
    async with Cluster(configuration, clock) as cluster:
        place = lease_place(settings.namespace, settings.lease)
        election = Election(cluster, place, settings.identity, wall=_wall, monotonic_s=time.monotonic)
        rotator = Rotator(
            cluster, settings, clock, standing, leads=lambda: election.leads, monotonic_s=time.monotonic
        )
        rotator.read_present()
        try:
            port = await exposition.start(*settings.listen) if settings.listen is not None else 0
            announce(_started(settings, port))
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_campaign(election, clock)),
                    group.create_task(_turn(rotator, election)),
                ]
                await ended.wait()
                for task in tasks:
                    task.cancel()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESIGN_S):
                    await election.resign()
            await exposition.stop()
    _log.info("ended")


async def _campaign(election: Election, clock: ApiClock) -> None:
    """Lead if nobody does. Whoever's clock is off leaves it to another."""
    fault = ""
    while True:
        try:
            if clock.is_plausible():
                await election.step()
            else:
                await election.resign()
            fault = ""
        except VolumeError as error:
            if str(error) != fault:
                _log.warning("lease_failed", error=str(error))
            fault = str(error)
        except Exception:
            _log.error("lease_failed", exc_info=True)
        await asyncio.sleep(RENEW_EVERY_S * (0.8 + secrets.randbelow(400) / 1000))


async def _turn(rotator: Rotator, election: Election) -> None:
    while True:
        pause_s = await rotator.step()
        # Whoever begins to lead has a look at once.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await election.won.wait()
        election.won.clear()


def _started(settings: RotateSettings, port: int) -> str:
    where = f", probes and metrics on port {port}" if port else ""
    names = ", ".join(settings.configurations)
    return (
        f"sidemount certs rotates Secret {settings.namespace}/{settings.secret} for {settings.policy.service.host} "
        f"({names}) into {settings.directory}{where}"
    )


def _wall() -> datetime:
    return datetime.now(UTC)
