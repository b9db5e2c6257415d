"""Facts from a directory: what is read, what is kept, what is reported, whatever happens to the files."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidemount.host.facts_directory import FactsDirectory
from sidemount.host.facts_files import MAX_FILE_BYTES
from sidemount.host.facts_text import parse_manifests
from sidemount.model.errors import InvalidRequest
from sidemount.model.facts import Facts

NAMESPACE = """
apiVersion: v1
kind: Namespace
metadata:
  name: {name}
  labels: {{sidemount.io/injection: enabled}}
"""
CLASS = """
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {{name: {name}}}
spec:
  deliveries: [sidecar]
  sources: ["{source}"]
  namespaces: {{}}
  filesystem: directory
"""
VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteMany]
  mountOptions: [ro]
  csi:
    driver: csi.sidemount.io
    volumeHandle: {handle}
    volumeAttributes: {{source: "dir:///srv", class: directory}}
  claimRef: {{namespace: ml, name: data}}
"""
BROKEN = "apiVersion: v1\nkind: [Namespace\n"


def _make_sparse(path: Path, size_bytes: int) -> None:
    path.touch()
    os.truncate(path, size_bytes)


class Watched:
    """A directory of manifests with a clock that the test moves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 1000.0
        # The wall clock is far from every file's times: no file counts as just written unless a test says so.
        self.directory = FactsDirectory(path, settle_s=1.0, clock=lambda: self.now, wall_clock=lambda: 0.0)

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def settle(self) -> bool:
        """Look, let the settling time pass, look again; return whether anything changed."""
        before = self.directory.refresh()
        self.now += 2.0
        return self.directory.refresh() or before

    @property
    def facts(self) -> Facts:
        return self.directory.facts()

    def faults(self) -> str:
        return "\n".join(f"{fault.where}: {fault.message}" for fault in self.facts.faults())


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    (tmp_path / "facts").mkdir()
    return Watched(tmp_path / "facts")


def test_every_kind_is_read_from_any_file_and_document(watched: Watched) -> None:
    watched.write(
        "any name.yaml", NAMESPACE.format(name="ml") + "---" + CLASS.format(name="d", source="dir:///**")
    )
    watched.write("b.yml", VOLUME.format(name="pv-1", handle="h1") + "---\n---\n# nothing\n")
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "ml"},
        "spec": {"volumeName": "pv-1"},
    }
    driver = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {
            "name": "csi.sidemount.io",
            "labels": {"security.kubernetes.io/csi-ephemeral-volume-profile": "restricted"},
        },
        "spec": {"volumeLifecycleModes": ["Persistent", "Ephemeral"]},
    }
    plain = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "plain.example"}}
    nodes = [
        {"metadata": {"name": n}, "status": {"nodeInfo": {"kubeletVersion": v}}}
        for n, v in (("a", "v1.31.2"), ("b", "v1.29.3-gke.1"))
    ]
    watched.write("c.json", json.dumps({"apiVersion": "v1", "kind": "List", "items": [claim, driver, plain]}))
    watched.write("d.json", json.dumps({"apiVersion": "v1", "kind": "NodeList", "items": nodes}))
    facts = watched.facts
    assert facts.faults() == ()
    assert facts.driver_class("d") is facts.driver_classes()["d"]
    namespace = facts.namespace("ml")
    assert namespace is not None
    assert namespace.labels["sidemount.io/injection"] == "enabled"
    assert namespace.labels["kubernetes.io/metadata.name"] == "ml"
    volume = facts.volume("pv-1")
    assert volume is not None
    assert volume.handle == "h1"
    assert volume.claim == ("ml", "data")
    assert volume.attributes == {"source": "dir:///srv", "class": "directory"}
    assert volume.mount_options == ("ro",)
    assert facts.volumes_by_handle("csi.sidemount.io", "h1") == (volume,)
    assert facts.volumes_by_handle("other.driver", "h1") == ()
    found = facts.claim("ml", "data")
    assert found is not None
    assert found.volume == "pv-1"
    assert facts.cluster().csi_drivers == {"csi.sidemount.io", "plain.example"}
    assert facts.cluster().csi_inline_drivers == {"csi.sidemount.io"}
    assert facts.cluster().csi_inline_levels == {"csi.sidemount.io": "restricted"}
    assert facts.cluster().server_version == (1, 29)


def test_a_volume_that_names_its_credentials_is_known_to(watched: Watched) -> None:
    """Whose they are is the kubelet's business."""
    secret = {"name": "s", "namespace": "other"}
    for name, more in (("with", {"nodePublishSecretRef": secret}), ("without", {})):
        spec = {"csi": {"driver": "csi.sidemount.io", "volumeHandle": name, **more}}
        manifest = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        watched.write(f"{name}.json", json.dumps(manifest))
    found = {name: watched.facts.volume(name) for name in ("with", "without")}
    assert {name: volume.has_secret for name, volume in found.items() if volume} == {
        "with": True,
        "without": False,
    }


def test_kinds_that_state_no_fact_are_noted_not_faulted(watched: Watched) -> None:
    watched.write(
        "a.yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n---" + NAMESPACE.format(name="ml"),
    )
    watched.write(
        "pv.yaml", "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: nfs}\nspec: {nfs: {}}\n"
    )
    assert watched.faults() == ""
    assert [note.where for note in watched.directory.notes()] == ["a.yaml, Deployment web"]
    assert watched.facts.namespace("ml")
    assert watched.facts.volume("nfs") is None


def test_another_groups_object_of_the_same_kind_is_no_fact(watched: Watched) -> None:
    watched.write("a.yaml", "apiVersion: example.com/v1\nkind: Namespace\nmetadata: {name: ml}\n")
    watched.write(
        "b.yaml", "apiVersion: sidemount.io/v9\nkind: FuseDriverClass\nmetadata: {name: x}\nspec: {}\n"
    )
    assert watched.facts.namespace("ml") is None
    assert "sidemount.io/v1alpha1" in watched.faults()


def test_files_that_are_no_manifests_are_not_read(watched: Watched) -> None:
    watched.write("README.md", BROKEN)
    watched.write(".hidden.yaml", BROKEN)
    watched.write("a.yaml.swp", BROKEN)
    assert watched.faults() == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"kind: [Namespace\n", "line 2", id="broken-yaml"),
        pytest.param(b"\xff\xfe\x00binary", "not UTF-8", id="binary"),
        pytest.param(b"PK\x03\x04\x00\x00", "not valid YAML", id="control-characters"),
        pytest.param(b"[" * 100_000, "YAML", id="deep"),
        pytest.param(b"just text", "not text", id="scalar"),
        pytest.param(b"- a\n- b\n", "not a list", id="sequence"),
        pytest.param(b"kind: Namespace\nkind: Namespace\n", "twice", id="duplicate-key"),
        pytest.param(b"kind: Namespace\nmetadata: {}\n", "metadata.name: is missing", id="no-name"),
        pytest.param(b"kind: Namespace\nmetadata: {name: 12}\n", "quote it", id="name-number"),
        pytest.param(b"kind: Namespace\nmetadata: []\n", "must be a mapping", id="metadata-list"),
        pytest.param(b"kind: List\nitems: 7\n", "items: must be a list", id="items-number"),
        pytest.param(b"kind: List\nitems: [7]\n", "not a number", id="item-number"),
        pytest.param(
            b"apiVersion: v1\nkind: Namespace\nmetadata: {name: x, labels: {a: true}}\n",
            "metadata.labels.a: must be text, not true/false",
            id="label-boolean",
        ),
        pytest.param(
            b"apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: x}\nspec: {csi: {driver: d}}\n",
            "spec.csi.volumeHandle: is missing",
            id="no-handle",
        ),
        pytest.param(
            b"apiVersion: v1\nkind: Node\nmetadata: {name: x}\nstatus: {nodeInfo: {kubeletVersion: new}}\n",
            "not a version",
            id="node-version",
        ),
        pytest.param(
            b"apiVersion: sidemount.io/v1alpha1\nkind: FuseDriverClass\nmetadata: {name: x}\nspec: {sources: 1}\n",
            "sources",
            id="class",
        ),
    ],
)
def test_a_broken_file_is_reported_by_name_and_takes_no_other_down(
    watched: Watched, content: bytes, said: str
) -> None:
    (watched.path / "bad.yaml").write_bytes(content)
    watched.write("good.yaml", NAMESPACE.format(name="ml"))
    assert watched.facts.namespace("ml")
    assert watched.faults().startswith("bad.yaml")
    assert said in watched.faults()
    assert "\n" not in watched.faults()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: os.mkfifo(path), id="fifo"),
        pytest.param(lambda path: path.mkdir(), id="directory"),
        pytest.param(lambda path: path.symlink_to("nowhere"), id="dangling"),
        pytest.param(lambda path: path.symlink_to(path), id="loop"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), id="device"),
        pytest.param(lambda path: _make_sparse(path, MAX_FILE_BYTES + 1), id="huge"),
    ],
)
def test_what_is_no_ordinary_file_is_reported_and_does_not_hang(
    watched: Watched, make: Callable[[Path], None]
) -> None:
    make(watched.path / "odd.yaml")
    watched.write("good.yaml", NAMESPACE.format(name="ml"))
    assert watched.facts.namespace("ml")
    assert watched.faults().startswith("odd.yaml: ")
    assert watched.settle() is False


def test_a_file_that_breaks_keeps_what_it_last_said(watched: Watched) -> None:
    watched.write("a.yaml", NAMESPACE.format(name="ml") + "---" + CLASS.format(name="d", source="dir:///**"))
    first = watched.facts
    watched.write("a.yaml", BROKEN)
    assert watched.settle()
    assert watched.facts.namespace("ml")
    assert watched.facts.driver_class("d")
    assert "what was last good is kept" in watched.faults()
    assert watched.facts.generation() > first.generation()
    watched.write("a.yaml", NAMESPACE.format(name="other"))
    assert watched.settle()
    assert watched.faults() == ""
    assert watched.facts.namespace("ml") is None
    assert watched.facts.namespace("other")
    assert first.namespace("ml"), "a snapshot never changes"


def test_a_class_that_becomes_invalid_keeps_its_last_good_version_while_its_neighbour_goes_on(
    watched: Watched,
) -> None:
    watched.write(
        "a.yaml",
        CLASS.format(name="one", source="dir:///a") + "---" + CLASS.format(name="two", source="dir:///a"),
    )
    assert watched.facts.faults() == ()
    watched.write(
        "a.yaml", CLASS.format(name="one", source="*") + "---" + CLASS.format(name="two", source="dir:///b")
    )
    assert watched.settle()
    one, two = watched.facts.driver_class("one"), watched.facts.driver_class("two")
    assert one is not None
    assert two is not None
    assert one.sources == ("dir:///a",)
    assert two.sources == ("dir:///b",)
    assert "FuseDriverClass one" in watched.faults()
    assert "is kept" in watched.faults()


def test_a_deleted_file_takes_its_objects_along(watched: Watched) -> None:
    watched.write("a.yaml", NAMESPACE.format(name="ml"))
    assert watched.facts.namespace("ml")
    (watched.path / "a.yaml").unlink()
    watched.directory.refresh()
    assert watched.facts.namespace("ml"), "it may be about to come back under its name"
    assert watched.settle()
    assert watched.facts.namespace("ml") is None


def test_a_file_that_is_being_written_is_not_read_until_it_is_still(watched: Watched) -> None:
    whole = NAMESPACE.format(name="ml") + "---" + CLASS.format(name="d", source="dir:///**")
    watched.write("a.yaml", whole)
    assert watched.facts.driver_class("d")
    half = whole[: whole.index("---")]
    for text in ("", half, half + "---\napi", whole.replace("d}", "e}")):
        watched.write("a.yaml", text)
        watched.now += 0.6
        watched.directory.refresh()
        assert watched.directory.is_changing
        assert watched.facts.driver_class("d")
    watched.now += 1.1
    assert watched.directory.refresh()
    assert watched.facts.driver_class("e")
    assert watched.facts.driver_class("d") is None
    assert not watched.directory.is_changing


def test_an_atomic_rename_of_the_same_size_and_time_is_seen(watched: Watched) -> None:
    watched.write("a.yaml", NAMESPACE.format(name="ml"))
    before = (watched.path / "a.yaml").stat()
    assert watched.facts.namespace("ml")
    watched.write("new", NAMESPACE.format(name="mx"))
    os.utime(watched.path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (watched.path / "new").replace(watched.path / "a.yaml")
    assert watched.settle()
    assert watched.facts.namespace("mx")
    assert watched.facts.namespace("ml") is None


def test_a_file_written_in_the_moment_it_was_read_is_read_again(tmp_path: Path) -> None:
    now = 1000.0
    path = tmp_path / "a.yaml"
    path.write_text(NAMESPACE.format(name="ml"))
    status = path.stat()
    directory = FactsDirectory(
        tmp_path, settle_s=1.0, clock=lambda: now, wall_clock=lambda: status.st_ctime_ns / 1e9 + 0.01
    )
    assert directory.facts().namespace("ml")
    assert directory.refresh() is False
    assert directory.is_changing
    now += 2.0
    assert directory.refresh() is False, "it says the same"
    assert directory.facts().generation() == 1


def test_a_mounted_config_map_swaps_as_a_whole(watched: Watched) -> None:
    def publish(version: str, name: str) -> None:
        (watched.path / version).mkdir()
        (watched.path / version / "a.yaml").write_text(NAMESPACE.format(name=name))
        (watched.path / "..tmp").symlink_to(version)
        (watched.path / "..tmp").replace(watched.path / "..data")

    publish("..2026_1", "ml")
    (watched.path / "a.yaml").symlink_to("..data/a.yaml")
    assert watched.facts.namespace("ml")
    assert watched.faults() == ""
    publish("..2026_2", "other")
    shutil.rmtree(watched.path / "..2026_1")
    assert watched.settle()
    assert watched.facts.namespace("other")
    assert watched.facts.namespace("ml") is None


def test_a_directory_that_vanishes_keeps_everything_and_returns(watched: Watched) -> None:
    watched.write("a.yaml", NAMESPACE.format(name="ml"))
    assert watched.facts.namespace("ml")
    away = watched.path.with_name("away")
    watched.path.rename(away)
    watched.now += 30
    assert watched.directory.refresh()
    assert watched.facts.namespace("ml")
    assert "cannot be read" in watched.faults()
    assert watched.directory.age_s() == 30
    assert watched.directory.refresh() is False, "the same fault is no change"
    (away / "b.yaml").write_text(NAMESPACE.format(name="new"))
    away.rename(watched.path)
    assert watched.settle()
    assert watched.faults() == ""
    assert watched.facts.namespace("ml")
    assert watched.facts.namespace("new")


def test_a_directory_that_was_never_there_is_a_fault_not_an_exception(tmp_path: Path) -> None:
    directory = FactsDirectory(tmp_path / "none")
    assert not directory.is_loaded
    assert directory.age_s() == float("inf")
    assert "cannot be read" in directory.facts().faults()[0].message
    assert not directory.is_loaded


@pytest.mark.parametrize("order", [("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")])
def test_of_two_statements_of_one_object_the_first_file_by_name_counts(
    watched: Watched, order: tuple[str, str]
) -> None:
    for name in order:
        watched.write(name, CLASS.format(name="d", source=f"dir:///{name[0]}"))
    found = watched.facts.driver_class("d")
    assert found is not None
    assert found.sources == ("dir:///a",)
    assert "b.yaml, FuseDriverClass d: is stated by a.yaml already" in watched.faults()
    (watched.path / "a.yaml").unlink()
    assert watched.settle()
    found = watched.facts.driver_class("d")
    assert found is not None
    assert found.sources == ("dir:///b",)
    assert watched.faults() == ""


def test_of_two_statements_in_one_file_the_first_counts(watched: Watched) -> None:
    watched.write(
        "a.yaml",
        CLASS.format(name="d", source="dir:///1") + "---" + CLASS.format(name="d", source="dir:///2"),
    )
    found = watched.facts.driver_class("d")
    assert found is not None
    assert found.sources == ("dir:///1",)
    assert "stands twice" in watched.faults()


def test_claims_of_one_name_in_two_namespaces_are_two(watched: Watched) -> None:
    text = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: c{namespace}}}\nspec: {{volumeName: {volume}}}\n"
    watched.write(
        "a.yaml",
        "---\n".join(
            text.format(namespace=n, volume=v)
            for n, v in ((", namespace: a", "v1"), (", namespace: b", "v2"), ("", "v3"))
        ),
    )
    assert watched.faults() == ""
    found = [watched.facts.claim(namespace, "c") for namespace in ("a", "b", "default")]
    volumes = [claim.volume for claim in found if claim is not None]
    assert volumes == ["v1", "v2", "v3"]


def test_nothing_new_is_no_new_generation(watched: Watched) -> None:
    watched.write("a.yaml", NAMESPACE.format(name="ml"))
    first = watched.facts
    os.utime(watched.path / "a.yaml")
    assert watched.settle() is False
    assert watched.facts is first


def test_a_fault_that_goes_away_without_the_file_changing_is_noticed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.write("a.yaml", NAMESPACE.format(name="ml"))
    real = os.open

    def refuse(path: object, flags: int, *rest: int, **named: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", refuse)
    assert watched.facts.namespace("ml") is None
    assert "Too many open files" in watched.faults()
    monkeypatch.setattr(os, "open", real)
    assert watched.settle()
    assert watched.facts.namespace("ml")
    assert watched.faults() == ""


def test_a_thousand_faults_are_told_shortly(watched: Watched) -> None:
    watched.write("a.yaml", "---\n".join(f"kind: Namespace\nmetadata: {{x: {n}}}\n" for n in range(1000)))
    assert len(watched.facts.faults()) == 201
    assert "and 800 more faults" in watched.faults()


def test_json_with_surrogate_escapes_is_read_and_broken_json_is_named(watched: Watched) -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "ml", "labels": {"a": "\U0001f600"}},
    }
    watched.write("a.json", json.dumps(manifest))
    watched.write("b.json", '{"kind": NaN}')
    watched.write("c.json", '{"kind": 1, "kind": 2}')
    watched.write("d.json", "[" * 100_000)
    namespace = watched.facts.namespace("ml")
    assert namespace is not None
    assert namespace.labels["a"] == "\U0001f600"
    assert [fault.where for fault in watched.facts.faults()] == ["b.json", "c.json", "d.json"]


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=200), is_json=st.booleans())
def test_any_text_is_parsed_or_refused_with_our_error(text: str, is_json: bool) -> None:
    with contextlib.suppress(InvalidRequest):
        parse_manifests(text, is_json=is_json)


_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
_fields = st.sampled_from(
    [
        "apiVersion",
        "kind",
        "metadata",
        "name",
        "namespace",
        "labels",
        "spec",
        "csi",
        "driver",
        "volumeHandle",
        "items",
    ]
)
_words = st.sampled_from(
    ["v1", "Namespace", "PersistentVolume", "PersistentVolumeClaim", "Node", "List", "NodeList", "x"]
)
_manifests = st.recursive(
    _scalars | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_fields, inner, max_size=6),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(manifest=_manifests)
def test_any_manifest_gives_facts_or_faults_never_an_exception(
    manifest: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.mkdir(exist_ok=True)
    (path / "a.json").write_text(json.dumps(manifest))
    facts = FactsDirectory(path).facts()
    assert facts.generation() == 1
