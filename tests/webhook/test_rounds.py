"""Second rounds: re-invocation after other webhooks, the API server and controllers have had their way with an injected pod."""

import copy
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidemount.host.facts_directory import FactsDirectory
from sidemount.model.mountspec import decode_keeper_config
from sidemount.model.names import view_name
from tests.webhook.admission import (
    SETTINGS,
    TOKEN_PATH,
    Json,
    assert_only_ours_changed,
    between_rounds,
    mutated,
    pod_with,
    validated,
)

Change = Callable[[Json], None]
FACTS = Path(__file__).parents[1] / "golden" / "facts"


def injected(**spec: Any) -> Json:
    """Return an injected pod with a user's init container, as it comes back in a second round."""
    pod = pod_with(
        initContainers=[
            {"name": "prepare", "image": "i", "volumeMounts": [{"name": "train", "mountPath": "/in"}]}
        ],
        **spec,
    )
    first = mutated(pod)
    assert first.patch
    return between_rounds(first.after)


def init_names(pod: Json) -> list[str]:
    """Return the names of init containers, in order."""
    return [container["name"] for container in pod["spec"]["initContainers"]]


def own(pod: Json, name: str) -> Json:
    """Return an init container by name."""
    found: Json = next(c for c in pod["spec"]["initContainers"] if c["name"] == name)
    return found


def settles(pod: Json, rounds: int = 2) -> Json:
    """Admit until nothing changes; fail when it does not come to rest."""
    for _ in range(rounds):
        reviewed = mutated(pod)
        assert reviewed.outcome.allowed, reviewed.response
        if not reviewed.patch:
            return pod
        pod = reviewed.after
    raise AssertionError("the pod is changed in every round")


# What others may do to ours without making a difference -------------------------------------------------------


def _vpa(pod: Json) -> None:
    for container in pod["spec"]["initContainers"]:
        container["resources"] = {"requests": {"cpu": "313m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}}


def _no_resources(pod: Json) -> None:
    for container in pod["spec"]["initContainers"]:
        container["resources"] = None


def _token_instead_of_mask(pod: Json) -> None:
    for container in pod["spec"]["initContainers"]:
        for mount in container["volumeMounts"]:
            if mount["mountPath"] == TOKEN_PATH:
                mount["name"] = "kube-api-access-9k2xd"


def _no_mask(pod: Json) -> None:
    for container in pod["spec"]["initContainers"]:
        container["volumeMounts"] = [m for m in container["volumeMounts"] if m["mountPath"] != TOKEN_PATH]


def _cloud_identity(pod: Json) -> None:
    pod["spec"]["volumes"].append({"name": "aws-iam-token", "projected": {"sources": []}})
    for container in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]:
        container.setdefault("env", []).append({"name": "AWS_ROLE_ARN", "value": "arn:aws:iam::1:role/x"})
        container["volumeMounts"].append(
            {
                "name": "aws-iam-token",
                "mountPath": "/var/run/secrets/eks.amazonaws.com/serviceaccount",
                "readOnly": True,
            }
        )


def _proxy_settings(pod: Json) -> None:
    for container in pod["spec"]["initContainers"]:
        container.setdefault("env", []).insert(0, {"name": "https_proxy", "value": "http://proxy:3128"})
        container["env"].append({"name": "OTEL_SERVICE_NAME", "value": "x"})


def _nulls_and_empties(pod: Json) -> None:
    for container in pod["spec"]["initContainers"]:
        container["envFrom"] = []
        container["lifecycle"] = None
        container["workingDir"] = ""
        container["ports"] = []
        container.setdefault("securityContext", {})["procMount"] = "Default"


def _newer_api_server(pod: Json) -> None:
    for container in pod["spec"]["initContainers"]:
        container["resizePolicy"] = [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]
        container["x-field-of-the-future"] = {"a": 1}


def _shuffled(pod: Json) -> None:
    shuffler = random.Random(7)
    shuffler.shuffle(pod["spec"]["volumes"])
    shuffler.shuffle(pod["spec"]["containers"])
    for container in pod["spec"]["initContainers"]:
        shuffler.shuffle(container["volumeMounts"])
    pod["metadata"]["annotations"] = dict(reversed(pod["metadata"]["annotations"].items()))


def _network_sidecar_first(pod: Json) -> None:
    pod["spec"]["initContainers"].insert(
        0, {"name": "istio-proxy", "image": "proxy", "restartPolicy": "Always"}
    )


def _unknown_container_first(pod: Json) -> None:
    pod["spec"]["initContainers"].insert(0, {"name": "vault-agent-init", "image": "vault"})


def _containers_added(pod: Json) -> None:
    pod["spec"]["containers"].append({"name": "agent", "image": "agent"})
    pod["spec"]["initContainers"].append({"name": "late", "image": "late"})


def _mount_removed(pod: Json) -> None:
    pod["spec"]["containers"][0]["volumeMounts"] = []


def _unrelated_labels(pod: Json) -> None:
    pod["metadata"]["labels"]["team"] = "x"
    pod["metadata"]["annotations"]["example.com/added"] = "y"


HARMLESS: list[Any] = [
    pytest.param(_vpa, id="autoscaler7641-VPA-changes-resources"),
    pytest.param(_no_resources, id="resources-taken-away"),
    pytest.param(_token_instead_of_mask, id="token-mounted-over-the-mask"),
    pytest.param(_no_mask, id="no-token-mount-at-all"),
    pytest.param(_cloud_identity, id="cloud-identity-added-everywhere"),
    pytest.param(_proxy_settings, id="proxy-added-everywhere"),
    pytest.param(_nulls_and_empties, id="nulls-and-empties"),
    pytest.param(_newer_api_server, id="fields-of-a-newer-api-server"),
    pytest.param(_shuffled, id="lists-in-another-order"),
    pytest.param(_network_sidecar_first, id="GCSF313-network-sidecar-put-first"),
    pytest.param(_unknown_container_first, id="kuma13791-another-injector-put-itself-first"),
    pytest.param(_containers_added, id="containers-without-our-volume-added"),
    pytest.param(_mount_removed, id="a-mount-removed"),
    pytest.param(_unrelated_labels, id="labels-and-annotations-edited"),
]


@pytest.mark.parametrize("change", HARMLESS)
def test_second_admission_yields_no_patch(change: Change) -> None:
    pod = injected()
    change(pod)
    again = mutated(pod)
    assert again.outcome.allowed, again.response
    assert again.patch == []
    assert again.reason == "AlreadyInjected"
    assert validated(pod).outcome.allowed


# What others take away, and is put back -----------------------------------------------------------------------


def _strip(field: str) -> Change:
    def strip(pod: Json) -> None:
        for container in pod["spec"]["initContainers"]:
            container.pop(field, None)

    return strip


def _as_old_types_marshal(pod: Json) -> None:
    """A webhook compiled against types older than native sidecars drops restartPolicy, and so every probe."""
    for container in pod["spec"]["initContainers"]:
        for field in ("restartPolicy", "startupProbe", "livenessProbe", "resizePolicy"):
            container.pop(field, None)


def _restart_on_failure(pod: Json) -> None:
    own(pod, "sidemount-train")["restartPolicy"] = "OnFailure"


def _other_probe(pod: Json) -> None:
    own(pod, "sidemount-train")["startupProbe"] = {"exec": {"command": ["true"]}, "periodSeconds": 1}


def _other_liveness(pod: Json) -> None:
    own(pod, "sidemount-train")["livenessProbe"] = {"exec": {"command": ["false"]}}


def _propagation_stripped(pod: Json) -> None:
    for mount in pod["spec"]["containers"][0]["volumeMounts"]:
        mount.pop("mountPropagation", None)


def _daemon_dropped(pod: Json) -> None:
    pod["spec"]["initContainers"] = [
        c for c in pod["spec"]["initContainers"] if c["name"] != "sidemount-train"
    ]


def _volumes_dropped(pod: Json) -> None:
    pod["spec"]["volumes"] = [
        v for v in pod["spec"]["volumes"] if v["name"] not in ("sidemount-run", "sidemount-source-train")
    ]


def _ours_last(pod: Json) -> None:
    containers = pod["spec"]["initContainers"]
    containers.sort(key=lambda container: container["name"].startswith("sidemount-"))


def _daemon_before_keeper(pod: Json) -> None:
    containers = pod["spec"]["initContainers"]
    containers.insert(0, containers.pop(1))


def _reversed(pod: Json) -> None:
    pod["spec"]["initContainers"].reverse()


STRIPPED: list[Any] = [
    pytest.param(_strip("restartPolicy"), id="GCSF322-restartPolicy-stripped"),
    pytest.param(_as_old_types_marshal, id="pod-identity208-old-types-drop-restartPolicy-and-probes"),
    pytest.param(_strip("startupProbe"), id="startupProbe-stripped"),
    pytest.param(_strip("livenessProbe"), id="livenessProbe-stripped"),
    pytest.param(_restart_on_failure, id="restartPolicy-changed"),
    pytest.param(_other_probe, id="startupProbe-replaced"),
    pytest.param(_other_liveness, id="livenessProbe-replaced"),
    pytest.param(_propagation_stripped, id="mountPropagation-stripped"),
    pytest.param(_daemon_dropped, id="daemon-dropped"),
    pytest.param(_volumes_dropped, id="volumes-dropped"),
    pytest.param(_ours_last, id="GCSF296-ours-moved-behind-a-container-that-needs-them"),
    pytest.param(_daemon_before_keeper, id="daemon-before-keeper"),
    pytest.param(_reversed, id="order-reversed"),
]


@pytest.mark.parametrize("change", STRIPPED)
def test_what_another_webhook_took_away_is_put_back(change: Change) -> None:
    pod = injected()
    change(pod)
    refused = validated(pod)
    assert refused.reason == "NotInjected", "the validating webhook must see it before it is repaired"
    repaired = mutated(pod)
    assert repaired.outcome.allowed, repaired.response
    assert repaired.reason == "Repaired"
    for name in ("sidemount-keeper", "sidemount-train"):
        assert own(repaired.after, name)["restartPolicy"] == "Always"
    for probe in ("startupProbe", "livenessProbe"):
        assert own(repaired.after, "sidemount-train")[probe]["exec"]["command"][0] == "python3"
    names = init_names(repaired.after)
    assert names.index("sidemount-keeper") < names.index("sidemount-train") < names.index("prepare")
    assert_only_ours_changed(
        {**pod, "spec": {**pod["spec"], "initContainers": [own(pod, "prepare")]}},
        {
            **repaired.after,
            "spec": {**repaired.after["spec"], "initContainers": [own(repaired.after, "prepare")]},
        },
    )
    assert mutated(repaired.after).patch == []
    assert validated(repaired.after).outcome.allowed


# What others add, and needs our volume --------------------------------------------------------------------------


def test_container_added_by_a_later_webhook_gets_its_mount_only_otel3349() -> None:
    pod = injected()
    pod["spec"]["containers"].append(
        {"name": "agent", "image": "a", "volumeMounts": [{"name": "train", "mountPath": "/train"}]}
    )
    again = mutated(pod)
    assert {op["path"].rpartition("/")[0] for op in again.patch} == {"/spec/containers/1/volumeMounts/0"}
    mount = again.after["spec"]["containers"][1]["volumeMounts"][0]
    assert mount == {
        "name": "sidemount",
        "mountPath": "/train",
        "subPath": "train",
        "mountPropagation": "HostToContainer",
    }
    assert mutated(again.after).patch == []


def test_container_added_with_a_new_view_extends_the_keeper() -> None:
    pod = injected()
    pod["spec"]["containers"].append(
        {
            "name": "agent",
            "image": "a",
            "volumeMounts": [{"name": "train", "mountPath": "/t", "subPath": "x", "readOnly": True}],
        }
    )
    again = mutated(pod)
    config = decode_keeper_config(own(again.after, "sidemount-keeper")["env"][0]["value"])
    names = {view.name for view in config.mounts[0].views}
    assert names == {"train", view_name("train", "x", True)}
    assert settles(again.after) == again.after


def test_init_container_added_in_front_is_put_behind_ours() -> None:
    pod = injected()
    pod["spec"]["initContainers"].insert(
        0, {"name": "first", "image": "a", "volumeMounts": [{"name": "train", "mountPath": "/t"}]}
    )
    again = mutated(pod)
    assert init_names(again.after) == ["sidemount-keeper", "sidemount-train", "first", "prepare"]
    assert mutated(again.after).patch == []


def test_new_container_gets_the_mount_of_the_list_form() -> None:
    pod = pod_with(
        {"sidemount.io/volumes": '[{"name": "train", "source": "dir:///srv/d", "mountPath": "/mnt"}]'},
        volumes=None,
        containers=[{"name": "app", "image": "i"}],
    )
    once = between_rounds(mutated(pod).after)
    once["spec"]["containers"].append({"name": "agent", "image": "a"})
    again = mutated(once)
    assert [m["mountPath"] for m in again.after["spec"]["containers"][1]["volumeMounts"]] == ["/mnt"]
    assert mutated(again.after).patch == []


def test_volume_asked_for_by_a_later_webhook_is_added() -> None:
    pod = injected()
    pod["metadata"]["annotations"]["volume.sidemount.io/logs"] = "dir:///srv/logs"
    pod["spec"]["volumes"].append({"name": "logs", "emptyDir": {}})
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "logs", "mountPath": "/logs"})
    again = mutated(pod)
    assert init_names(again.after) == ["sidemount-keeper", "sidemount-logs", "sidemount-train", "prepare"]
    assert mutated(again.after).patch == []
    assert validated(again.after).outcome.allowed


def test_claim_taken_up_in_the_first_round_is_known_in_the_second() -> None:
    pod = pod_with(
        {},
        volumes=[{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
        containers=[
            {"name": "app", "image": "i", "volumeMounts": [{"name": "models", "mountPath": "/models"}]}
        ],
    )
    first = mutated(pod)
    assert first.after["spec"]["volumes"][0] == pod["spec"]["volumes"][0]
    again = between_rounds(first.after)
    assert mutated(again).patch == []
    assert validated(again).outcome.allowed
    again["spec"]["containers"].append(
        {"name": "agent", "image": "a", "volumeMounts": [{"name": "models", "mountPath": "/m"}]}
    )
    more = mutated(again)
    assert more.after["spec"]["containers"][1]["volumeMounts"][0]["name"] == "sidemount"
    assert mutated(more.after).patch == []


# Two injectors ----------------------------------------------------------------------------------------------------


def _insist_on_first(pod: Json, *, restart_policy: str | None, mounts: list[Json]) -> Json:
    """Be another injector that puts its own container at index 0, always."""
    changed = copy.deepcopy(pod)
    spec = changed["spec"]
    containers = [c for c in spec.get("initContainers") or [] if c["name"] != "other"]
    other: Json = {"name": "other", "image": "o", "volumeMounts": mounts}
    if restart_policy:
        other["restartPolicy"] = restart_policy
    spec["initContainers"] = [other, *containers]
    return changed


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours-first", "other-first"])
@pytest.mark.parametrize("restart_policy", ["Always", None], ids=["sidecar", "init"])
def test_two_injectors_that_want_to_be_first_come_to_rest_istio53920(
    ours_first: bool, restart_policy: str | None
) -> None:
    pod = pod_with()
    if ours_first:
        pod = mutated(pod).after
    for _ in range(2):
        pod = _insist_on_first(pod, restart_policy=restart_policy, mounts=[])
        pod = mutated(pod).after
    settled = _insist_on_first(pod, restart_policy=restart_policy, mounts=[])
    assert settled == pod
    assert mutated(settled).patch == []
    assert init_names(settled) == ["other", "sidemount-keeper", "sidemount-train"]


# Copies of ours -----------------------------------------------------------------------------------------------------


def _set(container: str, path: str, value: Any) -> Change:
    def change(pod: Json) -> None:
        node: Any = own(pod, container)
        *parents, last = path.split(".")
        for key in parents:
            node = node[int(key)] if key.isdigit() else node.setdefault(key, {})
        if last == "+":
            node.append(value)
        elif isinstance(node, list):
            node[int(last)] = value
        else:
            node[last] = value

    return change


def _forge_config(edit: Callable[[Json], None]) -> Change:
    def change(pod: Json) -> None:
        entry = own(pod, "sidemount-keeper")["env"][0]
        config = json.loads(entry["value"])
        edit(config)
        entry["value"] = json.dumps(config)

    return change


def _other_source(config: Json) -> None:
    config["mounts"][0]["spec"]["source"] = "dir:///etc"


def _second_volume(config: Json) -> None:
    config["mounts"].append(
        {
            "spec": {**config["mounts"][0]["spec"], "volume": "etc", "source": "dir:///etc"},
            "views": [{"name": "etc", "subPath": "", "readOnly": False}],
        }
    )


def _foreign_view(config: Json) -> None:
    config["mounts"][0]["views"].append({"name": "other", "subPath": "", "readOnly": False})


def _misnamed_view(config: Json) -> None:
    config["mounts"][0]["views"].append({"name": "train.0123", "subPath": "a", "readOnly": True})


def _volume(name: str, value: Json) -> Change:
    def change(pod: Json) -> None:
        for index, volume in enumerate(pod["spec"]["volumes"]):
            if volume["name"] == name:
                pod["spec"]["volumes"][index] = {"name": name, **value}

    return change


def _second_run_volume(pod: Json) -> None:
    pod["spec"]["volumes"].append({"name": "sidemount-run", "emptyDir": {}})


def _second_keeper(pod: Json) -> None:
    pod["spec"]["initContainers"].append(copy.deepcopy(own(pod, "sidemount-keeper")))


def _unasked_daemon(pod: Json) -> None:
    daemon = copy.deepcopy(own(pod, "sidemount-train"))
    daemon["name"] = "sidemount-other"
    pod["spec"]["initContainers"].append(daemon)


def _keeper_as_app(pod: Json) -> None:
    pod["spec"]["containers"].append({"name": "sidemount-keeper", "image": "i"})


def _unasked_volume(pod: Json) -> None:
    pod["spec"]["volumes"].append({"name": "sidemount-secret-x", "secret": {"secretName": "x"}})


def _app_mounts(mount: Json) -> Change:
    def change(pod: Json) -> None:
        pod["spec"]["containers"][0]["volumeMounts"].append(mount)

    return change


def _view_written_to(pod: Json) -> None:
    pod["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = view_name("train", "never/made", False)


K, D = "sidemount-keeper", "sidemount-train"
FORGED: list[Any] = [
    pytest.param(_set(K, "image", "evil"), id="keeper-image"),
    pytest.param(
        _set(K, "image", "evil.example/ghcr.io/sidemount/sidemount:0.1.0"), id="keeper-image-elsewhere"
    ),
    pytest.param(_set(D, "image", "ghcr.io/sidemount/sidemount-evil:0.1.0"), id="daemon-image-of-like-name"),
    pytest.param(_set(K, "image", None), id="keeper-no-image"),
    pytest.param(_set(K, "terminationMessagePath", "/sidemount/train"), id="keeper-message-in-mounts"),
    pytest.param(
        _set(
            K, "restartPolicyRules", [{"action": "Restart", "exitCodes": {"operator": "In", "values": [0]}}]
        ),
        id="keeper-restart-rules",
    ),
    pytest.param(
        _set(
            K,
            "volumeMounts.2",
            {"name": "train", "mountPath": TOKEN_PATH, "readOnly": True, "mountPropagation": "Bidirectional"},
        ),
        id="keeper-token-bidirectional",
    ),
    pytest.param(
        _set(D, "volumeMounts.+", {"name": "train", "mountPath": "/var/run/secrets/x"}),
        id="daemon-writable-secrets",
    ),
    pytest.param(_set(K, "command", ["sh"]), id="keeper-command"),
    pytest.param(_set(K, "args", ["-c", "x"]), id="keeper-args"),
    pytest.param(_set(K, "workingDir", "/evil"), id="keeper-workingDir"),
    pytest.param(_set(K, "env.+", {"name": "LD_PRELOAD", "value": "/x"}), id="keeper-env-LD_PRELOAD"),
    pytest.param(_set(K, "env.+", {"name": "PYTHONPATH", "value": "/x"}), id="keeper-env-PYTHONPATH"),
    pytest.param(_set(K, "env.+", {"name": "PATH", "value": "/x"}), id="keeper-env-PATH"),
    pytest.param(_set(K, "env.+", {"name": "OPENSSL_CONF", "value": "/x"}), id="keeper-env-OPENSSL_CONF"),
    pytest.param(
        _set(D, "env", [{"name": "AWS_ENDPOINT_URL", "value": "http://x"}]), id="daemon-env-endpoint"
    ),
    pytest.param(_set(D, "env", [{"name": "RCLONE_CONFIG", "value": "/x"}]), id="daemon-env-client-option"),
    pytest.param(_set(K, "env.+", {"name": "SIDEMOUNT_MOUNTS", "value": "{}"}), id="keeper-env-twice"),
    pytest.param(
        _set(
            K,
            "env.0",
            {"name": "SIDEMOUNT_MOUNTS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ),
        id="keeper-env-from-elsewhere",
    ),
    pytest.param(_set(K, "env", []), id="keeper-env-gone"),
    pytest.param(_set(K, "env.1", {"name": "SIDEMOUNT_POD_UID", "value": "other"}), id="keeper-env-pod-uid"),
    pytest.param(_set(K, "env.0.value", "{}"), id="keeper-config-not-ours"),
    pytest.param(_set(K, "envFrom", [{"configMapRef": {"name": "x"}}]), id="keeper-envFrom"),
    pytest.param(_set(K, "lifecycle", {"postStart": {"exec": {"command": ["sh"]}}}), id="keeper-lifecycle"),
    pytest.param(_set(K, "livenessProbe", {"exec": {"command": ["sh"]}}), id="keeper-livenessProbe"),
    pytest.param(_set(K, "readinessProbe", {"exec": {"command": ["sh"]}}), id="keeper-readinessProbe"),
    pytest.param(_set(K, "securityContext.runAsUser", 1000), id="keeper-uid"),
    pytest.param(_set(K, "securityContext.readOnlyRootFilesystem", False), id="keeper-writable-root"),
    pytest.param(
        _set(K, "volumeMounts.+", {"name": "train", "mountPath": "/usr/lib/python3"}), id="keeper-extra-mount"
    ),
    pytest.param(
        _set(
            K,
            "volumeMounts.+",
            {"name": "train", "mountPath": "/var/run/secrets/../../../usr", "readOnly": True},
        ),
        id="keeper-extra-mount-dot-dot",
    ),
    pytest.param(_set(K, "volumeMounts.0.mountPath", "/elsewhere"), id="keeper-mount-moved"),
    pytest.param(_set(K, "volumeMounts.0.mountPropagation", "None"), id="keeper-propagation"),
    pytest.param(_set(K, "volumeDevices", [{"name": "train", "devicePath": "/dev/x"}]), id="keeper-device"),
    pytest.param(_set(D, "securityContext.privileged", True), id="daemon-privileged"),
    pytest.param(_set(D, "securityContext.capabilities.add", ["SYS_ADMIN"]), id="daemon-capability"),
    pytest.param(_set(D, "securityContext.seccompProfile", {"type": "Unconfined"}), id="daemon-seccomp"),
    pytest.param(_set(D, "securityContext.procMount", "Unmasked"), id="daemon-procMount"),
    pytest.param(_set(D, "securityContext", None), id="daemon-no-securityContext"),
    pytest.param(_set(D, "args", ["--source", "/"]), id="daemon-args"),
    pytest.param(_set(D, "command", []), id="daemon-no-command"),
    pytest.param(_set(D, "volumeMounts.0.subPath", "../other"), id="daemon-run-directory"),
    pytest.param(_set(D, "volumeMounts", []), id="daemon-no-mounts"),
    pytest.param(_forge_config(_other_source), id="config-other-source"),
    pytest.param(_forge_config(_second_volume), id="config-second-volume"),
    pytest.param(_forge_config(_foreign_view), id="config-foreign-view"),
    pytest.param(_forge_config(_misnamed_view), id="config-misnamed-view"),
    pytest.param(_volume("sidemount", {"emptyDir": {}}), id="mounts-volume-on-disk"),
    pytest.param(_volume("sidemount", {"hostPath": {"path": "/"}}), id="mounts-volume-hostPath"),
    pytest.param(_volume("sidemount-source-train", {"hostPath": {"path": "/etc"}}), id="source-volume-moved"),
    pytest.param(_second_run_volume, id="second-run-volume"),
    pytest.param(_second_keeper, id="second-keeper"),
    pytest.param(_unasked_daemon, id="daemon-of-no-volume"),
    pytest.param(_keeper_as_app, id="keeper-among-containers"),
    pytest.param(_unasked_volume, id="volume-of-no-volume"),
    pytest.param(_app_mounts({"name": "sidemount", "mountPath": "/all"}), id="app-mounts-all-views"),
    pytest.param(_app_mounts({"name": "sidemount-run", "mountPath": "/run/s"}), id="app-mounts-sockets"),
    pytest.param(
        _app_mounts(
            {"name": "sidemount", "mountPath": "/a", "subPath": "train", "mountPropagation": "Bidirectional"}
        ),
        id="app-mounts-view-bidirectional",
    ),
    pytest.param(
        _app_mounts({"name": "sidemount", "mountPath": "/a", "subPathExpr": "$(X)"}), id="app-mounts-expr"
    ),
    pytest.param(_view_written_to, id="app-mounts-view-of-nobody"),
]


@pytest.mark.parametrize("change", FORGED)
def test_copies_of_ours_are_refused(change: Change) -> None:
    pod = injected()
    change(pod)
    for reviewed in (mutated(pod), validated(pod)):
        assert not reviewed.outcome.allowed
        assert reviewed.reason == "HandMade", reviewed.message
        assert reviewed.response["status"]["code"] == 400


def test_pod_that_does_not_ask_may_not_bring_our_containers() -> None:
    pod = injected()
    for key in list(pod["metadata"]["annotations"]):
        if key.startswith("volume."):
            del pod["metadata"]["annotations"][key]
    assert mutated(pod).reason == "HandMade"
    assert validated(pod).reason == "HandMade"
    assert validated(pod, "plain").reason == "HandMade"


def _images(pod: Json, image: Callable[[str], str]) -> Json:
    """Return the pod with every image of every container rewritten, as an image swapper does."""
    pod = copy.deepcopy(pod)
    for container in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]:
        container["image"] = image(container["image"])
    return pod


MIRRORED = replace(SETTINGS, image_mirrors=("registry.example:5000/proxy/",))


@pytest.mark.parametrize(
    "swap",
    [
        pytest.param(lambda image: f"registry.example:5000/proxy/{image}", id="whole-reference"),
        pytest.param(
            lambda image: f"registry.example:5000/proxy/{image.removeprefix('ghcr.io/')}",
            id="registry-replaced",
        ),
    ],
)
def test_images_sent_through_a_mirror_that_the_operator_names_stay(swap: Callable[[str], str]) -> None:
    pod = _images(injected(), swap)
    assert mutated(pod, settings=MIRRORED).patch == []
    assert validated(pod, settings=MIRRORED).outcome.allowed
    for refused in (mutated(pod), validated(pod)):
        assert refused.reason == "HandMade"
        assert "--image-mirrors" in refused.message


@pytest.mark.parametrize(
    "version",
    [":0.0.9", ":0.0.9@sha256:" + "a" * 64, "@sha256:" + "a" * 64, ""],
    ids=["tag", "both", "digest", "none"],
)
def test_an_image_of_another_version_converges_while_the_webhook_is_upgraded(version: str) -> None:
    first = injected()
    pod = _images(first, lambda image: image.replace(":0.1.0", version))
    assert validated(pod).outcome.allowed
    again = mutated(pod)
    assert [op["path"] for op in again.patch] == [
        "/spec/initContainers/0/image",
        "/spec/initContainers/1/image",
    ]
    assert again.after == first
    # The images of two versions, and an order that does not work: both are put right at once.
    pod["spec"]["initContainers"].reverse()
    assert own(settles(pod), "sidemount-keeper")["image"] == own(first, "sidemount-keeper")["image"]
    mirrored = _images(pod, lambda image: f"registry.example:5000/proxy/{image}")
    after = mutated(mirrored, settings=MIRRORED).after
    assert own(after, "sidemount-keeper")["image"] == own(first, "sidemount-keeper")["image"]


def test_an_image_prefix_that_is_rolled_out_converges() -> None:
    prefixed = replace(SETTINGS, image_prefix="air.gap/")
    pod = injected()
    again = mutated(pod, settings=prefixed)
    assert own(again.after, "sidemount-keeper")["image"] == "air.gap/ghcr.io/sidemount/sidemount:0.1.0"
    assert mutated(again.after, settings=prefixed).patch == []
    assert mutated(again.after).reason == "HandMade", "nobody allows that registry without the setting"


def test_quantities_that_the_api_server_writes_in_its_own_way_are_no_difference(tmp_path: Path) -> None:
    """resource.Quantity is written in its canonical form when an object is stored: 2048Mi becomes 2Gi."""
    classes = (FACTS / "classes.yaml").read_text().replace("cacheSize: 2Gi", "cacheSize: 2048Mi")
    (tmp_path / "classes.yaml").write_text(classes)
    (tmp_path / "cluster.yaml").write_text((FACTS / "cluster.yaml").read_text())
    facts = FactsDirectory(tmp_path, settle_s=0).facts()
    pod = between_rounds(mutated(pod_with({"volume.sidemount.io/train": "s3://b/x"}), facts=facts).after)
    cache = next(v for v in pod["spec"]["volumes"] if v["name"] == "sidemount-cache-train")
    assert cache["emptyDir"]["sizeLimit"] == "2048Mi"
    cache["emptyDir"]["sizeLimit"] = "2Gi"
    assert mutated(pod, facts=facts).patch == []
    cache["emptyDir"]["sizeLimit"] = "3Gi"
    assert mutated(pod, facts=facts).reason == "HandMade"


@pytest.mark.parametrize("mount_path_form", [False, True])
def test_app_of_a_fresh_pod_cannot_name_volumes_that_we_are_about_to_add(mount_path_form: bool) -> None:
    mount = (
        {"name": "sidemount-run", "mountPath": "/x"}
        if mount_path_form
        else {"name": "sidemount", "mountPath": "/x"}
    )
    pod = pod_with()
    pod["spec"]["containers"][0]["volumeMounts"].append(mount)
    assert mutated(pod).reason == "HandMade"


@pytest.mark.parametrize("field", ["shareProcessNamespace", "hostPID"])
def test_two_daemons_of_one_uid_are_no_conflict_in_the_second_round(field: str) -> None:
    pod = pod_with(
        {
            "volume.sidemount.io/train": "s3://b/k?secret=s",
            "volume.sidemount.io/logs": "s3://b/l?secret=s",
        },
        volumes=[{"name": name, "emptyDir": {}} for name in ("train", "logs")],
        **{field: True},
    )
    first = mutated(pod)
    assert first.patch
    assert mutated(between_rounds(first.after)).patch == []
    pod["spec"]["containers"][0]["securityContext"] = {"runAsUser": 65532}
    assert mutated(pod).reason == "SharedUid"


@pytest.mark.parametrize(("is_marked", "reason"), [(True, "NotInjected"), (False, "NameCollision")])
def test_volumes_whose_containers_are_gone_are_told_from_names_that_a_user_chose(
    is_marked: bool, reason: str
) -> None:
    """istio#54562: another webhook's template knows no native sidecars of ours."""
    pod = injected()
    pod["spec"]["initContainers"] = [c for c in pod["spec"]["initContainers"] if c["name"] == "prepare"]
    if not is_marked:
        del pod["metadata"]["annotations"]["sidemount.io/status"]
    for reviewed in (mutated(pod), validated(pod)):
        assert not reviewed.outcome.allowed
        assert reviewed.reason == reason
