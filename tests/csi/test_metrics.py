"""What a running plugin shows of itself over HTTP, and what of volumes is counted."""

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.csi.controlled import Controlled
from tests.csi.plugin import Plugin, Refused
from tests.host.mount_node import MountNode, eventually

Samples = dict[str, float]
_LINE = re.compile(r"(\w+(?:\{[^}]*\})?) (\S+)")


@pytest.fixture
def metered(node: MountNode) -> Iterator[Plugin]:
    """Return a plugin that serves metrics at a port of its choice."""
    plugin = Plugin(node, flags=("--metrics-address", "127.0.0.1:0"))
    try:
        yield plugin.start()
    finally:
        plugin.end()


def scrape(plugin: Plugin) -> Samples:
    """Return every sample that is shown now."""
    lines: list[str] = []

    def is_read() -> bool:
        ports = [event["port"] for event in plugin.events("metrics_served")]
        try:
            with urlopen(f"http://127.0.0.1:{ports[-1]}/metrics", timeout=10) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain")
                lines[:] = answer.read().decode().splitlines()
        except (OSError, IndexError):  # it has just begun, and says at which port in its log
            return False
        return True

    eventually(is_read, what="metrics are served")
    found = (_LINE.fullmatch(line) for line in lines if not line.startswith("#"))
    return {match[1]: float(match[2]) for match in found if match is not None}


def undocumented(shown: Samples) -> set[str]:
    """Return the metrics of ours that the page does not name; it shortens names to their ends."""
    page = (Path(__file__).parents[2] / "docs/monitoring.md").read_text()
    names = {re.sub(r"\{.*|_(bucket|sum|count)(?=\{|$)", "", name) for name in shown}
    ours = {name.removeprefix("sidemount_csi") for name in names if name.startswith("sidemount_")}
    return {name for name in ours if f"{name}`" not in page and f"{name}{{" not in page}


def test_a_running_plugin_shows_calls_volumes_daemons_and_what_they_go_through(metered: Plugin) -> None:
    """S3-04."""
    before = scrape(metered)
    assert before["sidemount_csi_ready"] == 1
    assert before['sidemount_csi_publications{stage="published"}'] == 0
    assert before['sidemount_csi_takeovers_total{class="other"}'] == 0
    assert before["sidemount_csi_keeper_starts_total"] == 1
    assert 0 <= before["sidemount_csi_facts_age_seconds"] < 60
    assert before["sidemount_csi_driver_classes"] == 3
    metered.publish()
    with pytest.raises(Refused):
        metered.publish("other", **{"class": "no-such"})
    shown = scrape(metered)
    assert shown['sidemount_csi_calls_total{code="OK",method="NodePublishVolume"}'] == 1
    assert shown['sidemount_csi_calls_total{code="INVALID_ARGUMENT",method="NodePublishVolume"}'] == 1
    assert shown['sidemount_csi_call_duration_seconds_count{method="NodePublishVolume"}'] == 2
    assert shown['sidemount_csi_publish_failures_total{reason="UnknownClass"}'] == 1
    assert shown['sidemount_csi_volumes{class="directory",state="serving"}'] == 1
    assert shown['sidemount_csi_daemons{state="running"}'] == 1
    os.kill(metered.first_daemon(), signal.SIGKILL)
    eventually(
        lambda: scrape(metered)['sidemount_csi_takeovers_total{class="directory"}'] == 1, what="a takeover"
    )
    shown = scrape(metered)
    assert shown['sidemount_csi_daemon_ends_total{class="directory"}'] == 1
    assert shown['sidemount_csi_stall_seconds_count{class="directory"}'] == 1
    assert shown['sidemount_csi_remounts_total{class="directory"}'] == 0
    metered.unpublish()
    shown = scrape(metered)
    assert shown['sidemount_csi_publications{stage="published"}'] == 0
    assert shown['sidemount_csi_daemons{state="running"}'] == 0
    assert undocumented(shown) == set()


def test_no_label_comes_from_a_caller(metered: Plugin) -> None:
    """However many volumes, targets and classes a caller names, there are no more samples."""
    metered.publish()
    metered.unpublish()
    for n in range(3):
        for context in ({"class": f"none-{n}"}, {"source": f"dir:///secret-{n}"}, {f"option-{n}": "x"}):
            with pytest.raises(Refused):
                metered.publish(f"t{n}", f"vol{n}", **context)
    with pytest.raises(Refused):
        metered.call_raw("Node", "NoSuchCall", b"")
    for name in scrape(metered):
        assert not re.search(r"none-|secret-|option-|vol|NoSuch|t\d\b", name), name


def test_a_scrape_waits_for_no_mount(metered: Plugin) -> None:
    """M11: a daemon that stands still holds up whoever asks its mount, and nobody else."""
    metered.publish()
    pids = metered.daemons()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert scrape(metered)['sidemount_csi_publications{stage="published"}'] == 1
        assert time.monotonic() - began < 5
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_an_address_that_is_taken_is_no_reason_not_to_serve(node: MountNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        plugin = Plugin(node, flags=("--metrics-address", f"127.0.0.1:{taken.getsockname()[1]}"))
        try:
            plugin.start()
            eventually(lambda: bool(plugin.events("no_metrics")), what="it is told of")
            plugin.publish()
            plugin.unpublish()
        finally:
            plugin.end()


def test_a_controller_shows_its_pools_and_what_it_copies(node: MountNode) -> None:
    """A scrape shows what was found last: it asks no pool."""
    controller = Controlled(node, flags=("--metrics-address", "127.0.0.1:0"))
    try:
        volume = controller.start().create("one")
        (controller.data(volume.volume_id) / "f").write_bytes(b"x" * 100_000)
        snapshot = controller.cut("cut", volume.volume_id)
        controller.restore("two", snapshot.snapshot_id)
        pool = f'{{pool="{controller.pool}"}}'
        shown = scrape(controller)
        assert shown["sidemount_csi_ready"] == 1
        assert shown[f"sidemount_csi_copied_files_total{pool}"] >= 2
        assert shown[f"sidemount_csi_copied_bytes_total{pool}"] >= 200_000
        assert shown[f"sidemount_csi_copies_under_way{pool}"] == 0
        assert shown['sidemount_csi_controller_operations{kind="volume"}'] == 0
        assert shown['sidemount_csi_calls_total{code="OK",method="CreateVolume"}'] == 2
        controller.kill()
        controller.start()
        eventually(lambda: scrape(controller)[f"sidemount_csi_pool_answers{pool}"] == 1, what="a look")
        shown = scrape(controller)
        assert shown[f"sidemount_csi_pool_volumes{pool}"] == 2
        assert shown[f"sidemount_csi_pool_snapshots{pool}"] == 1
        room = (shown[f"sidemount_csi_pool_{what}_bytes{pool}"] for what in ("available", "size"))
        assert 0 < next(room) <= next(room)
        assert shown[f"sidemount_csi_pool_age_seconds{pool}"] < 60
        assert undocumented(shown) == set()
    finally:
        controller.end()


_BUCKETS = """
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: buckets}
spec:
  deliveries: [csi]
  sources: ["file:///**"]
  namespaces: {}
  filesystem: objects
  uid: 0
  abilities: {descriptor: true, takeover: true, readOnly: enforced}
  resources: {limits: {memory: 512Mi}}
"""


def test_a_bucket_s_volume_is_counted_over_takeover_and_keeper_and_forgotten_at_its_end(
    node: MountNode,
) -> None:
    """A scrape over HTTP, of a real mount. S4-09."""
    plugin = Plugin(node, flags=("--metrics-address", "127.0.0.1:0"))
    (node.work / "facts" / "buckets.yaml").write_text(_BUCKETS)
    store = plugin.store("bucket")
    for name in "abcd":
        (store / name).write_text("content")

    def shown(metric: str, more: str = "") -> float:
        return scrape(plugin).get(f'sidemount_objects_{metric}{{class="buckets"{more}}}', -1)

    def read(*names: str) -> None:
        for name in names:
            assert (plugin.seen() / name).read_text() == "content"

    try:
        plugin.start()
        assert shown("block_read_bytes_total") == -1
        plugin.publish(volume="bucket", **{"class": "buckets", "source": f"file://{store}"})
        eventually(lambda: shown("block_read_bytes_total") == 0, what="it is there, with 0")
        assert shown("cache_bound_bytes", ',place="memory"') > 0
        assert shown("store_faults_total", ',kind="denied"') == 0
        read("a", "b")
        eventually(lambda: shown("block_read_bytes_total") == 14, what="reads are counted")
        os.kill(plugin.keeper(), signal.SIGKILL)
        eventually(lambda: scrape(plugin)["sidemount_csi_keeper_starts_total"] == 2, what="another keeper")
        eventually(
            lambda: scrape(plugin)['sidemount_csi_volumes{class="buckets",state="serving"}'] == 1,
            what="it keeps the volume",
        )
        assert shown("block_read_bytes_total") == 14
        read("c")
        eventually(lambda: shown("block_read_bytes_total") == 21, what="counting goes on")
        for pid in {*plugin.daemons()} - {plugin.first_daemon()}:
            os.kill(pid, signal.SIGKILL)
        read("d")
        eventually(lambda: shown("block_read_bytes_total") == 28, what="a successor's come on top")
        with (plugin.seen() / "new").open("w") as file:
            file.write("x" * 1000)
            file.flush()
            eventually(lambda: shown("uncommitted_bytes") == 1000, what="what is not stored yet")
            assert shown("drafts") == 1
        eventually(lambda: shown("commits_total") == 1, what="the commit is counted")
        assert shown("uncommitted_bytes") == 0
        assert undocumented(scrape(plugin)) == set()
        plugin.unpublish(volume="bucket")
        assert shown("cache_bound_bytes", ',place="memory"') == 0
        assert shown("block_read_bytes_total") == 28
    finally:
        plugin.end()
