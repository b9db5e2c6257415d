"""What was made a moment ago is never refused because the watch is late, and a flood of refusals is none of reads."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidemount.host.cluster_reader import ReadLimits
from sidemount.host.live_kinds import KINDS
from tests.webhook.admission import SETTINGS, pod_with, review
from tests.webhook.limit_ranger import limit_range, quota
from tests.webhook.live import WITHIN_S, fill, live_facts, until
from tests.webhook.running import SERVICE, make_certificates
from tests.webhook.watched_apiserver import (
    PLURALS,
    WatchedApiServer,
    claim,
    namespace,
    volume,
    watched_apiserver,
)
from webhook.admit import mutate
from webhook.decision import judge
from webhook.live_facts import LiveFacts
from webhook.outcome import Doubt
from webhook.second_look import LookLimits
from webhook.service import Service
from webhook.settings import Settings


def asking(**request: Any) -> dict[str, Any]:
    """Return a pod that asks for one volume: a directory, unless told otherwise."""
    request = request or {"source": "dir:///srv/data"}
    return pod_with({"sidemount.io/volumes": json.dumps([{"name": "train", **request}])})


class Served:
    """The whole service, its facts from a fake API server, and a client as the API server is."""

    def __init__(self, server: WatchedApiServer, port: int, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._url = f"https://{SERVICE}:{port}"
        self._session = session

    async def admit(self, pod: dict[str, Any], space: str, path: str = "mutate") -> tuple[int, Any]:
        """Return HTTP status and the response of a review."""
        async with self._session.post(
            f"{self._url}/{path}?timeout=20s",
            data=review(pod, space),
            headers={"Content-Type": "application/json"},
        ) as answer:
            text = await answer.text()
            return answer.status, json.loads(text)["response"] if answer.status == 200 else text

    async def page(self, path: str) -> tuple[int, str]:
        """Return a page."""
        async with self._session.get(f"{self._url}{path}") as answer:
            return answer.status, await answer.text()


class _Loopback(aiohttp.abc.AbstractResolver):
    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> Any:
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        """Do nothing."""


@asynccontextmanager
async def served(directory: Path, *, is_loaded: bool = True) -> AsyncIterator[Served]:
    """Run the service on the facts of a fake API server that holds the golden objects."""
    files = make_certificates(directory / "tls")
    async with watched_apiserver() as server:
        await fill(server)
        if not is_loaded:
            server.always["namespaces"] = 500
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(server.port)))
        service = Service(
            Settings(
                host="127.0.0.1",
                port=0,
                tls_cert=files.serving,
                tls_key=files.serving_key,
                kubeconfig=kubeconfig,
                lame_duck_s=0.0,
                grace_s=5.0,
            )
        )
        announced = asyncio.Event()
        running = asyncio.create_task(service.run(lambda _: announced.set()))
        tls = ssl.create_default_context(cafile=str(files.authority))
        connector = aiohttp.TCPConnector(ssl=tls, limit=0, resolver=_Loopback())
        try:
            async with aiohttp.ClientSession(connector=connector) as session:
                await until(lambda: service.port or running.done(), "it listens")
                if is_loaded:
                    async with asyncio.timeout(WITHIN_S):
                        await announced.wait()
                yield Served(server, service.port, session)
        finally:
            service.end()
            service.end()
            await asyncio.wait_for(running, WITHIN_S)


def _kubeconfig(port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


# What is read of a namespace that turns out to be open.
OPENED = [("get", "namespaces"), ("list", "limitranges")]


def looks(server: WatchedApiServer) -> list[tuple[str, str]]:
    """Return the reads since the watches were frozen."""
    return [call for call in server.calls if call[0] != "watch"]


async def freeze(server: WatchedApiServer) -> None:
    """From now on, watches tell nothing; and none is opened, which would take what is prepared for a read."""
    await until(lambda: all(server.count("watch", kind.plural) for kind in KINDS), "every watch is open")
    server.is_frozen = True
    server.calls.clear()


@pytest.mark.asyncio
async def test_fifty_pods_of_a_new_namespace_cost_one_read_of_it_and_its_limits(tmp_path: Path) -> None:
    async with served(tmp_path) as webhook:
        await freeze(webhook.server)
        await webhook.server.put(namespace("new"))
        webhook.server.delay_s = 0.05
        answers = await asyncio.gather(*(webhook.admit(asking(), "new") for _ in range(50)))
        assert [(status, told["allowed"]) for status, told in answers] == [(200, True)] * 50
        assert all("patch" in told for _, told in answers)
        assert looks(webhook.server) == OPENED


@pytest.mark.asyncio
@pytest.mark.parametrize("code", [0, 403, 500])
async def test_limits_that_came_with_a_new_namespace_are_kept_to(tmp_path: Path, code: int) -> None:
    """The API server holds our containers to them. Who may not read them is judged by it alone."""
    async with served(tmp_path) as webhook:
        server = webhook.server
        await freeze(server)
        await server.put(namespace("new"))
        await server.put(limit_range("sizes", {"type": "Container", "max": {"cpu": "1"}}, namespace="new"))
        await server.put(limit_range("far", {"type": "Container", "max": {"memory": "1Mi"}}, namespace="old"))
        if code:
            server.always["limitranges"] = code
        status, told = await webhook.admit(asking(), "new")
        if code == 500:
            assert status == 503, told
            return
        assert status == 200, told
        assert told["allowed"], told
        warnings = " ".join(told["warnings"])
        assert ("a LimitRange lowers the limits of sidemount-train: cpu 1" in warnings) is (code == 0)


@pytest.mark.asyncio
async def test_a_claim_made_a_moment_ago_leads_to_its_volume(tmp_path: Path) -> None:
    async with served(tmp_path) as webhook:
        server = webhook.server
        await freeze(server)
        await server.put(namespace("new"))
        attributes = {"class": "directory", "source": "dir:///srv/x"}
        csi = {"driver": "csi.sidemount.io", "volumeHandle": "x", "volumeAttributes": attributes}
        await server.put(volume("pv-new", csi=csi))
        await server.put(claim("data", "new", "pv-new"))
        status, told = await webhook.admit(asking(claim="data"), "new")
        assert status == 200, told
        assert told["allowed"], told
        reads = [("get", p) for p in ("persistentvolumeclaims", "persistentvolumes")]
        assert looks(server) == [*OPENED, *reads]


@pytest.mark.asyncio
async def test_a_volume_made_a_moment_ago_is_found_by_its_handle(tmp_path: Path) -> None:
    """S2-10, S2-11: no field selector knows handles, so all volumes are listed, once however many ask."""
    async with served(tmp_path) as webhook:
        server = webhook.server
        await freeze(server)
        csi = {"driver": "csi.sidemount.io", "volumeHandle": "new"}
        attributes = {"class": "directory", "source": "dir:///srv/x"}
        await server.put(volume("pv-new", csi={**csi, "volumeAttributes": attributes}))
        existing = {"driver": "csi.sidemount.io", "handle": "new", "accessMode": "READ_WRITE_MANY"}
        server.delay_s = 0.05
        answers = await asyncio.gather(*(webhook.admit(asking(existing=existing), "ml") for _ in range(20)))
        assert all(status == 200 and told["allowed"] for status, told in answers), answers[0]
        assert looks(server) == [("list", "persistentvolumes")]


def using(claim_name: str) -> dict[str, Any]:
    """Return a pod that asks for nothing, and uses a claim."""
    volumes = [{"name": "train", "persistentVolumeClaim": {"claimName": claim_name}}]
    return pod_with({}, volumes=volumes)


@pytest.mark.asyncio
async def test_a_claim_that_nobody_asked_for_is_looked_for_too(tmp_path: Path) -> None:
    """A pod whose claim is ours and was made a moment ago would otherwise wait for a CSI driver that may not be there."""
    async with served(tmp_path) as webhook:
        server = webhook.server
        await freeze(server)
        await server.put(namespace("new"))
        attributes = {"class": "directory", "source": "dir:///srv/x"}
        csi = {"driver": "csi.sidemount.io", "volumeHandle": "x", "volumeAttributes": attributes}
        await server.put(volume("pv-new", csi=csi))
        await server.put(claim("data", "new", "pv-new"))
        status, told = await webhook.admit(using("data"), "new")
        assert status == 200, told
        assert "patch" in told, told


@pytest.mark.asyncio
async def test_claims_of_others_cost_no_read(tmp_path: Path) -> None:
    async with served(tmp_path) as webhook:
        server = webhook.server
        local = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "local"}, "spec": {}}
        for manifest in (local, volume("other", driver="other.example"), claim("unbound", "ml")):
            await server.put(manifest)
        await server.put(claim("on-local", "ml", "local"))
        await server.put(claim("on-other", "ml", "other"))
        await until_known(webhook, "PersistentVolumeClaim", server)
        server.calls.clear()
        for name in ("on-local", "on-other", "unbound"):
            status, told = await webhook.admit(using(name), "ml")
            assert status == 200, told
            assert told["allowed"]
            assert "patch" not in told
        assert looks(server) == []


async def until_known(webhook: Served, kind: str, server: WatchedApiServer) -> None:
    """Return when the service knows as many objects of a kind as there are, and of PersistentVolumes too."""
    wanted = [
        f'objects{{kind="{each}"}} {len(server.collections[PLURALS[each]].objects)}.0'
        for each in (kind, "PersistentVolume")
    ]
    ends = asyncio.get_running_loop().time() + WITHIN_S
    while True:
        _, text = await webhook.page("/metrics")
        if all(line in text for line in wanted):
            return
        assert asyncio.get_running_loop().time() < ends, text
        await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_a_label_and_a_class_made_a_moment_ago_count(tmp_path: Path) -> None:
    async with served(tmp_path) as webhook:
        server = webhook.server
        classes = server.collections["fusedriverclasses"].objects
        copied = json.loads(json.dumps(classes["", "directory"]))
        await freeze(server)
        await server.put(namespace("plain"))
        copied["metadata"] = {"name": "fresh"}
        copied["spec"]["sources"] = ["dir:///opt/**"]
        await server.put(copied)
        pods = [asking(source="dir:///srv/a"), asking(**{"source": "dir:///opt/a", "class": "fresh"})]
        for pod in pods:
            status, told = await webhook.admit(pod, "plain")
            assert status == 200, told
            assert told["allowed"], told
        assert sorted(looks(server)) == [("get", "fusedriverclasses"), *OPENED]


@pytest.mark.asyncio
async def test_a_class_that_is_only_chosen_by_its_source_is_looked_for(tmp_path: Path) -> None:
    async with served(tmp_path) as webhook:
        server = webhook.server
        copied = json.loads(json.dumps(server.collections["fusedriverclasses"].objects["", "directory"]))
        copied["metadata"] = {"name": "fresh"}
        copied["spec"]["sources"] = ["dir:///opt/**"]
        await freeze(server)
        await server.put(copied)
        status, told = await webhook.admit(asking(source="dir:///opt/a"), "ml")
        assert status == 200, told
        assert told["allowed"], told
        assert looks(server) == [("list", "fusedriverclasses")]


@pytest.mark.asyncio
async def test_limits_that_were_raised_or_taken_away_a_moment_ago_refuse_nobody(tmp_path: Path) -> None:
    async with served(tmp_path) as webhook:
        server = webhook.server
        small = limit_range("limits", {"type": "Container", "max": {"memory": "1Mi"}})
        await server.put(small)
        await server.put(quota({"requests.cpu": "1m"}))

        async def is_told(reason: str) -> None:
            """An answer counts as fresh for a second, so it may take as long."""
            async with asyncio.timeout(WITHIN_S):
                while True:
                    status, told = await webhook.admit(asking(), "ml")
                    assert status == 200, told
                    if told.get("status", {}).get("reason", "") == reason:
                        return
                    await asyncio.sleep(0.05)

        await is_told("LimitRangeExceeded")
        await freeze(server)
        await server.delete("LimitRange", "limits", "ml")
        await is_told("QuotaExceeded")
        await server.put(quota({"requests.cpu": "1"}))
        await is_told("")
        assert {("get", "limitranges"), ("get", "resourcequotas")} <= set(looks(server))


@pytest.mark.asyncio
async def test_a_flood_of_refusals_is_no_flood_of_reads(tmp_path: Path) -> None:
    async with served(tmp_path) as webhook:
        webhook.server.calls.clear()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(10):
            answers = await asyncio.gather(*(webhook.admit(asking(), "absent") for _ in range(20)))
            assert all(status == 200 and not told["allowed"] for status, told in answers)
        assert webhook.server.count("get") <= 1 + (loop.time() - began) / LookLimits().settled_s


@pytest.mark.asyncio
async def test_what_cannot_be_learned_is_no_refusal_for_good(tmp_path: Path) -> None:
    """S2-14: and never a silent consent."""
    async with served(tmp_path) as webhook:
        await freeze(webhook.server)
        await webhook.server.put(namespace("new"))
        webhook.server.answers["namespaces"] = [500]
        status, told = await webhook.admit(asking(), "new")
        assert status == 503, told
        assert "cannot be read" in told

        async def admitted() -> bool:
            return (await webhook.admit(asking(), "new"))[0] == 200

        ends = asyncio.get_running_loop().time() + WITHIN_S
        while not await admitted():
            assert asyncio.get_running_loop().time() < ends
        assert (await webhook.admit(asking(), "new"))[1]["allowed"]


@pytest.mark.asyncio
async def test_nobody_waits_for_an_api_server_that_is_away(tmp_path: Path) -> None:
    """S4: what is known is served on; ready stays ready."""
    async with served(tmp_path) as webhook:
        await webhook.server.stop()
        for _ in range(5):
            answers = await asyncio.gather(*(webhook.admit(asking(), "ml") for _ in range(20)))
            assert all(status == 200 and told["allowed"] for status, told in answers)
        assert (await webhook.page("/readyz"))[0] == 200
        _, metrics = await webhook.page("/metrics")
        assert 'sidemount_webhook_facts_kind_age_seconds{kind="Namespace"}' in metrics
        assert 'sidemount_webhook_facts_kind_errors_total{kind="Namespace",trouble="unreachable"}' in metrics
        await webhook.server.start()


@pytest.mark.asyncio
async def test_readiness_waits_for_every_kind_and_names_what_is_missing(tmp_path: Path) -> None:
    async with served(tmp_path, is_loaded=False) as webhook:

        async def page() -> tuple[int, str]:
            try:
                return await webhook.page("/readyz")
            except aiohttp.ClientConnectorError:
                return 0, ""

        ends = asyncio.get_running_loop().time() + WITHIN_S
        while "Namespace was never read" not in (told := await page())[1]:
            assert asyncio.get_running_loop().time() < ends, told
            await asyncio.sleep(0.02)
        assert told[0] == 503
        assert (await webhook.admit(asking(), "ml"))[0] == 503, "nothing is refused for what is not known yet"
        webhook.server.always.clear()
        while (await page())[0] != 200:
            assert asyncio.get_running_loop().time() < ends
            await asyncio.sleep(0.02)
        assert (await webhook.admit(asking(), "ml"))[1]["allowed"]


@pytest.mark.asyncio
async def test_a_class_that_is_broken_is_named_with_its_fault(tmp_path: Path) -> None:
    async with served(tmp_path) as webhook:
        broken = {
            "apiVersion": "sidemount.io/v1alpha1",
            "kind": "FuseDriverClass",
            "metadata": {"name": "bad"},
        }
        await webhook.server.put(broken | {"spec": {"deliveries": "none"}})
        status, told = await webhook.admit(asking(**{"source": "dir:///srv/a", "class": "bad"}), "ml")
        assert status == 200, told
        assert not told["allowed"], told
        assert "cannot be used" in told["status"]["message"]
        assert (await webhook.admit(asking(), "ml"))[1]["allowed"]


async def _settle(facts: LiveFacts, *doubts: Doubt) -> None:
    await facts.settle(doubts, 10.0)


@pytest.mark.asyncio
async def test_what_a_read_found_goes_when_nobody_else_tells_of_it() -> None:
    """An object read once, and deleted before the watch told of it, must not stay for ever."""
    async with watched_apiserver() as server:
        await fill(server)
        async with live_facts(server) as facts:
            store = facts._store
            ahead = 0.0
            began = store.clock
            store.clock = lambda: began() + ahead
            await freeze(server)
            await server.put(namespace("brief"))
            await _settle(facts, Doubt("Namespace", "", "brief"))
            assert facts.facts().namespace("brief") is not None
            await server.delete("Namespace", "brief")
            ahead = 60.0
            await until(lambda: facts.facts().namespace("brief") is None, "it stays")


@pytest.mark.asyncio
async def test_a_read_that_the_watch_overtakes_counts_for_nothing() -> None:
    async with watched_apiserver() as server:
        await fill(server)
        async with live_facts(server) as facts:
            made = await server.put(namespace("brief"))
            await until(lambda: facts.facts().namespace("brief"), "the watch tells")
            server.delay_s = 0.2
            server.answers["namespaces"] = [json.dumps(made).encode()]
            server.calls.clear()
            reading = asyncio.create_task(_settle(facts, Doubt("Namespace", "", "brief")))
            await until(lambda: server.count("get") == 1, "the read begins")
            await server.delete("Namespace", "brief")
            await reading
            assert facts.facts().namespace("brief") is None


@pytest.mark.asyncio
async def test_reads_are_bounded_in_number_however_many_names_are_asked_for() -> None:
    looks = LookLimits(a_second=20.0, burst=5.0, longest_s=0.4)
    async with watched_apiserver() as server, live_facts(server, looks=looks) as facts:
        server.calls.clear()
        doubts = [Doubt("Namespace", "", f"n{number}") for number in range(100)]
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(_settle(facts, doubt) for doubt in doubts), return_exceptions=True)
        assert server.count("get") <= 6 + 20 * (asyncio.get_running_loop().time() - began)


@pytest.mark.asyncio
async def test_a_slow_list_of_everything_is_not_waited_for_when_the_watch_lives() -> None:
    looks = LookLimits(longest_s=0.2)
    reads = ReadLimits(call_s=5.0)
    async with watched_apiserver() as server, live_facts(server, looks=looks, reads=reads) as facts:
        await until(lambda: all(report.is_live for report in facts.kinds()), "the watches are open")
        server.delay_s = 2.0
        await _settle(facts, Doubt("PersistentVolume"))
        server.delay_s = 0.0


def test_other_facts_may_change_without_a_new_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster changes all the time; a decision depends on what it read alone."""

    async def run() -> None:
        judged = 0

        def counting(*arguments: Any) -> Any:
            nonlocal judged
            judged += 1
            return judge(*arguments)

        monkeypatch.setattr("webhook.admit.judge", counting)
        monkeypatch.setattr("webhook.admit._memory", None)
        async with watched_apiserver() as server:
            await fill(server)
            async with live_facts(server) as facts:
                body = review(asking(), "ml")
                for number in range(5):
                    assert mutate(body, facts=facts.facts(), settings=SETTINGS).outcome.allowed
                    before = facts.facts().generation()
                    await server.put(claim(f"other-{number}", "elsewhere"))
                    await until(lambda n=before: facts.facts().generation() > n, "it changes")  # type: ignore[misc]
                assert judged == 1
                await server.put(namespace("ml", enabled=False, team="ml"))
                await until(
                    lambda: not mutate(body, facts=facts.facts(), settings=SETTINGS).outcome.allowed, ""
                )
                assert judged == 2

    asyncio.run(run())
