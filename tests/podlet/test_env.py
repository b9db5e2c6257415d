"""$(NAME) in env, command and args, exactly as Kubernetes expands it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.podlet.env import environment, expand
from e2e.podlet.objects import MissingObject, Objects
from e2e.podlet.parse_pod import parse_pod
from tests.podlet.pods import pod, task

KNOWN = {"A": "1", "B": "$(A)", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        pytest.param("x $(A) y", "x 1 y", id="known"),
        pytest.param("$(NO)", "$(NO)", id="unknown-stays"),
        pytest.param("$(B)", "$(A)", id="not-twice"),
        pytest.param("$$(A)", "$(A)", id="escaped"),
        pytest.param("$$$(A)", "$1", id="escaped-then-known"),
        pytest.param("$$$$(A)", "$$(A)", id="two-escapes"),
        pytest.param("$(A", "$(A", id="unclosed"),
        pytest.param("$(A$(A)", "$(A$(A)", id="opener-within-a-name"),
        pytest.param("$", "$", id="lone-dollar"),
        pytest.param("a$", "a$", id="dollar-at-the-end"),
        pytest.param("$A ${A}", "$A ${A}", id="shell-syntax-stays"),
        pytest.param("$()", "$()", id="no-name"),
        pytest.param("$(EMPTY)", "", id="empty-value"),
        pytest.param("$$", "$", id="only-an-escape"),
    ],
)
def test_expansion_follows_kubernetes(text: str, expanded: str) -> None:
    assert expand(text, KNOWN) == expanded


@given(st.text())
def test_doubling_every_dollar_protects_any_text(text: str) -> None:
    assert expand(text.replace("$", "$$"), KNOWN) == text


def test_env_comes_in_order_from_values_fields_resources_and_objects() -> None:
    limits = {"limits": {"memory": "64Mi", "cpu": "1500m"}}
    env = [
        {"name": "EARLY", "value": "$(LATE)"},
        {"name": "LATE", "value": "l"},
        {"name": "BOTH", "value": "$(EARLY)-$(LATE)-$(FROM_S)"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "NOTE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['note']"}}},
        {"name": "MIB", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "NOT", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k", "optional": True}}},
    ]
    manifest = pod(
        task("c", env=env, envFrom=[{"prefix": "FROM_", "secretRef": {"name": "s"}}], resources=limits)
    )
    parsed = parse_pod(manifest)
    objects = Objects(manifests={("Secret", "ns", "s"): {"k": b"v", "S": b"w"}})

    assert environment(parsed, parsed.containers[0], objects) == {
        "FROM_k": "v", "FROM_S": "w", "EARLY": "$(LATE)", "LATE": "l", "BOTH": "$(LATE)-l-w", "POD": "pod",
        "LABEL": "x", "NOTE": "a\nb", "MIB": "64", "CPU": "2", "KEY": "v",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"secretKeyRef": {"name": "no", "key": "k"}}, 'secret "no" not found'),
        ({"configMapKeyRef": {"name": "m", "key": "no"}}, "couldn't find key no in ConfigMap ns/m"),
        ({"fieldRef": {"fieldPath": "metadata.ownerReferences"}}, "does not know the field"),
    ],
)
def test_what_an_env_entry_lacks_is_named(source: object, message: str) -> None:
    parsed = parse_pod(pod(task("c", env=[{"name": "X", "valueFrom": source}])))
    objects = Objects(manifests={("ConfigMap", "ns", "m"): {"k": b"v"}})
    with pytest.raises(MissingObject, match=message):
        environment(parsed, parsed.containers[0], objects)
