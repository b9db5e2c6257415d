"""The command as people and scripts use it: text, JSON, exit codes."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sidemount.cli import main
from sidemount.commands import classes
from sidemount.commands.output import as_yaml
from sidemount.model.yamltext import parse_documents

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "trainer",
        "namespace": "ml",
        "annotations": {"volume.sidemount.io/train": "dir:///srv/data?readOnly=true"},
    },
    "spec": {
        "volumes": [{"name": "train", "emptyDir": {}}],
        "containers": [
            {"name": "app", "image": "busybox", "volumeMounts": [{"name": "train", "mountPath": "/data"}]}
        ],
    },
}


def workload(kind: str) -> dict[str, Any]:
    template = {
        "metadata": {"annotations": POD["metadata"]["annotations"], "labels": {"a": "b"}},
        "spec": POD["spec"],
    }
    spec: dict[str, Any] = {"template": template, "x-unknown": 1}
    if kind == "CronJob":
        spec = {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}
    document: dict[str, Any] = {
        "apiVersion": "x/v1",
        "kind": kind,
        "metadata": {"name": "w", "namespace": "ml"},
    }
    return document | ({"template": template} if kind == "PodTemplate" else {"spec": spec})


def template_in(document: dict[str, Any]) -> dict[str, Any]:
    found: Any = document
    for key in {"CronJob": ("spec", "jobTemplate", "spec", "template"), "PodTemplate": ("template",)}.get(
        document["kind"], ("spec", "template")
    ):
        found = found[key]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return tmp_path / "pod.yaml"


def test_explain_names_class_delivery_reason_and_mounts(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest.write_text(yaml.safe_dump(POD))
    assert main(["explain", "-f", str(manifest)]) == 0
    text = capsys.readouterr().out
    for expected in (
        "Pod/trainer",
        "directory",
        "sidecar",
        "SidecarPreferred",
        "dir:///srv/data",
        "/data",
        "read-only",
    ):
        assert expected in text


def test_explain_speaks_json(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest.write_text(yaml.safe_dump(POD))
    assert main(["explain", "-f", str(manifest), "-o", "json"]) == 0
    (pod,) = json.loads(capsys.readouterr().out)["pods"]
    assert pod["verdict"] == "injected"
    assert pod["volumes"][0]["mounts"] == [
        {"container": "app", "path": "/data", "subPath": "", "readOnly": True}
    ]


@pytest.mark.parametrize(
    "kind",
    [
        "Deployment",
        "StatefulSet",
        "DaemonSet",
        "ReplicaSet",
        "ReplicationController",
        "Job",
        "CronJob",
        "PodTemplate",
    ],
)
def test_inject_takes_every_workload_and_leaves_the_rest_alone(
    kind: str, manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = workload(kind)
    manifest.write_text(yaml.safe_dump(before))
    assert main(["inject", "-f", str(manifest)]) == 0
    after = yaml.safe_load(capsys.readouterr().out)
    names = [container["name"] for container in template_in(after)["spec"]["initContainers"]]
    assert names == ["sidemount-keeper", "sidemount-train"]
    assert set(template_in(after)) == {"metadata", "spec"}
    assert "generateName" not in template_in(after)["metadata"]
    template_in(after).clear()
    template_in(before).clear()
    assert after == before


def test_inject_reads_standard_input_and_several_documents(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"clusterIP": "None"},
    }
    listed = {"apiVersion": "v1", "kind": "List", "items": [POD]}
    text = yaml.safe_dump_all([service, listed])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["inject", "-f", "-", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [item["kind"] for item in found["items"]] == ["Service", "Pod"]
    assert found["items"][0] == service


def test_injecting_twice_changes_nothing_more(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest.write_text(yaml.safe_dump(POD))
    assert main(["inject", "-f", str(manifest)]) == 0
    once = capsys.readouterr().out
    manifest.write_text(once)
    assert main(["inject", "-f", str(manifest)]) == 0
    assert capsys.readouterr().out == once


def test_refused_is_exit_code_3_and_prints_no_manifest(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = json.loads(json.dumps(POD))
    pod["metadata"]["annotations"] = {"volume.sidemount.io/train": "dir:///etc"}
    manifest.write_text(yaml.safe_dump_all([POD, pod]))
    assert main(["inject", "-f", str(manifest)]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "SourceNotPermitted" in printed.err
    assert main(["explain", "-f", str(manifest)]) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", "no object", id="empty"),
        pytest.param("a: [", "pod.yaml", id="broken yaml"),
        pytest.param("[1, 2]", "no kind", id="a list"),
        pytest.param("kind: Deployment\nspec: 7\n", "has no spec.template", id="no template"),
        pytest.param(
            "kind: Deployment\nspec: {template: null}\n", "has no spec.template", id="null template"
        ),
        pytest.param("a: &x [1]\nb: *x\nkind: Pod", "pod.yaml", id="alias"),
        pytest.param("[" * 100_000, "pod.yaml", id="deep"),
        pytest.param("kind: Pod\nmetadata: {creationTimestamp: .nan}", "", id="not JSON"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_line_a_fault(
    text: str, expected: str, manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest.write_text(text)
    code = main(["inject", "-f", str(manifest)])
    printed = capsys.readouterr()
    assert code == 2 or (not expected and code == 0)
    assert expected in printed.err
    assert "Traceback" not in printed.err


def test_binary_and_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    assert main(["inject", "-f", str(tmp_path / "x")]) == 2
    assert "not UTF-8" in capsys.readouterr().err
    assert main(["inject", "-f", str(tmp_path / "missing")]) == 2
    assert "missing" in capsys.readouterr().err
    assert main(["classes", "--facts", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_namespace_that_contradicts_the_manifest_is_refused(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest.write_text(yaml.safe_dump(POD))
    assert main(["explain", "-f", str(manifest), "-n", "other"]) == 2
    assert "namespace ml" in capsys.readouterr().err


def test_n_gives_the_namespace_where_the_manifest_has_none(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = json.loads(json.dumps(POD))
    del pod["metadata"]["namespace"]
    manifest.write_text(yaml.safe_dump(pod))
    assert main(["explain", "-f", str(manifest), "-n", "plain"]) == 3
    assert "NamespaceNotEnabled" in capsys.readouterr().out


def test_annotations_on_the_workload_are_pointed_out_gcsf_153(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = workload("Deployment")
    document["metadata"]["annotations"] = template_in(document)["metadata"].pop("annotations")
    manifest.write_text(yaml.safe_dump(document))
    assert main(["inject", "-f", str(manifest)]) == 0
    printed = capsys.readouterr()
    assert "move it to spec.template.metadata.annotations" in printed.err
    assert yaml.safe_load(printed.out) == document


def test_terminal_control_characters_never_reach_the_terminal(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = json.loads(json.dumps(POD))
    pod["metadata"]["name"] = "x\x1b[31m\u202e"
    pod["metadata"]["annotations"] = {"volume.sidemount.io/train": "dir:///srv/\x1b]0;x\x07"}
    manifest.write_text(json.dumps(pod))
    main(["explain", "-f", str(manifest)])
    printed = capsys.readouterr()
    assert not {"\x1b", "\x07", "\u202e"} & set(printed.out + printed.err)


def test_classes_lists_the_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classes"]) == 0
    assert "directory" in capsys.readouterr().out
    assert main(["classes", "-o", "json"]) == 0
    found = {known["name"]: known for known in json.loads(capsys.readouterr().out)["classes"]}
    assert found["directory"]["capabilities"] == ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"]
    assert found["rclone"]["options"]["cacheMode"]["values"] == ["off", "minimal", "writes", "full"]


def test_a_broken_manifest_among_the_facts_is_said_and_the_rest_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = Path(__file__).parent.parent.parent / "sidemount" / "samples"
    (tmp_path / "good.yaml").write_text((samples / "classes.yaml").read_text())
    (tmp_path / "bad.yaml").write_text("kind: FuseDriverClass\nmetadata: {name: bad}\nspec: {imgae: x}\n")
    assert main(["classes", "--facts", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "bad.yaml" in printed.err
    assert "directory" in printed.out


def test_doctor_reports_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["ok"] else 1)
    assert {
        "kernel",
        "right to mount",
        "FUSE",
        "RESEND",
        "BENEATH",
        "passthrough",
        "propagation",
        "libfuse",
        "crun",
    } <= {finding["topic"] for finding in found["findings"]}
    assert all(finding["found"] for finding in found["findings"])


@pytest.mark.parametrize(
    "text",
    [
        "y",
        "N",
        "on",
        "1e3",
        "12e03",
        "0o17",
        "0644",
        "-.5",
        "1_0",
        "~",
        "2001-01-01",
        "1" * 50 + "e1",
        "a\x85b",
    ],
)
def test_kubectl_reads_every_text_of_the_output_as_text(text: str) -> None:
    assert parse_documents(as_yaml([{"value": text, text: 1}])) == ({"value": text, text: 1},)
    assert "!!" not in as_yaml([{"value": text}])


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"))))
def test_any_printable_text_comes_back_from_the_output(text: str) -> None:
    assert parse_documents(as_yaml([{"value": text}])) == ({"value": text},)


def _shell(command: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["/bin/sh", "-c", command.replace("sidemount", f"{sys.executable} -m sidemount.cli")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", **env},
    )


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        pytest.param("sidemount classes >&-", 1, "standard output is closed", id="stdout-closed"),
        pytest.param("sidemount classes >/dev/full", 1, "No space left on device", id="disk-full"),
        pytest.param("sidemount explain -f - <&-", 2, "standard input is closed", id="stdin-closed"),
        pytest.param("sidemount explain -f /dev/zero", 2, "is larger than", id="endless-file"),
    ],
)
def test_streams_that_are_closed_full_or_endless_are_one_line(command: str, code: int, said: str) -> None:
    done = _shell(command)
    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_warnings_never_land_in_the_manifest_when_standard_error_is_closed(manifest: Path) -> None:
    manifest.write_text(json.dumps(POD | {"metadata": POD["metadata"] | {"name": "é"}}))
    done = _shell(f"sidemount inject -f {manifest} 2>&-", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert parse_documents(done.stdout)[0]["metadata"]["name"] == "é"


def test_a_fault_of_ours_is_a_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> str:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(classes, "_row", fail)
    assert main(["classes"]) == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError at test_cli.py:" in said
    assert "secret" not in said


def test_items_of_a_typed_list_need_not_say_their_kind(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = {key: value for key, value in POD.items() if key not in ("apiVersion", "kind")}
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "PodList", "items": [pod]}))
    assert main(["explain", "-f", str(manifest)]) == 0
    assert "Pod/trainer" in capsys.readouterr().out


@pytest.mark.parametrize("namespace", ["\udcff", "a b", "A", "x" * 64, "a\x1b[31m"])
def test_n_that_is_no_namespace_is_bad_input(
    namespace: str, manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest.write_text(json.dumps(POD))
    assert main(["explain", "-f", str(manifest), "-n", namespace]) == 2
    assert "is no namespace" in capsys.readouterr().err
