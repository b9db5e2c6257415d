"""What a volume counts, and how it is told."""

import errno
import logging
from pathlib import Path

import pytest

from sidecar.objects.keys import Hidden
from sidecar.objects.metrics import Metrics
from sidemount.stores.memory_store import MemoryStore
from sidemount.stores.store import FaultKind, StoreFault
from tests.sidecar.objects.core import make_kernel


def test_first_key_of_each_kind_and_prefix_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    for number in range(5):
        metrics.hide(Hidden.EMPTY, "a/", f"a//{number}\n")
        metrics.hide(Hidden.DOT, "a/", "a/./x")
        metrics.hide(Hidden.EMPTY, "b/", "b//")
    assert metrics.numbers() == {"hidden_empty_component": 10, "hidden_dot_component": 5}
    assert len(caplog.records) == 3
    assert {vars(record)["prefix"] for record in caplog.records} == {"'a/'", "'b/'"}
    assert "\n" not in vars(caplog.records[0])["key"]


def test_numbers_of_all_parts_are_told_when_they_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = MemoryStore()
    store.put("f", [b"content"])
    kernel = make_kernel(store, tmp_path)
    metrics = kernel.filesystem.metrics
    assert kernel.cat("f") == b"content"
    kernel.put("g", b"more")
    metrics.fault(StoreFault(errno.EIO, FaultKind.SERVER, "no"))
    metrics.close()
    metrics.close()
    (told,) = [vars(record) for record in caplog.records if record.getMessage() == "numbers"]
    assert told["fault_server"] == 1
    assert told["read_store_bytes"] == 7
    assert told["names_nodes"] == 3
    assert any(name.startswith("write_") for name in told)
