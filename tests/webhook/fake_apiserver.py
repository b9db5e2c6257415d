"""A fake API server that holds a webhook to everything the real one does: calls, checks, rounds, refusals.

Sources: pkg/admission/plugin/webhook/{request/admissionreview.go, mutating/dispatcher.go, errors/statuserror.go},
pkg/endpoints/filters/warning.go, plugin/pkg/admission/{serviceaccount,limitranger} of Kubernetes.
"""

import base64
import copy
import http.client
import json
import re
import socket
import ssl
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonpatch

from tests.webhook.running import SERVICE
from tests.webhook.typed_pod import NotDecodable, decode_typed, default_pod, validation_faults

Manifest = dict[str, Any]

TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_AUDIT_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_WARNING_TOTAL, _WARNING_CUT = 4096, 256


class CallFailed(Exception):
    """The call itself failed: failurePolicy decides."""


class InternalError(Exception):
    """A 500 to the client that no failurePolicy prevents."""


class Rejected(Exception):
    """The request was denied, by a webhook or by validation."""

    def __init__(self, message: str, *, code: int, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason


@dataclass(kw_only=True)
class Webhook:
    """One entry of a webhook configuration. `call` takes and gives the bytes of a review; `timeout_s` is passed on."""

    name: str
    call: Callable[[bytes, int], bytes]
    reinvoked: bool = True
    fails_open: bool = False
    subresources: bool = False
    operations: tuple[str, ...] = ("CREATE",)
    timeout_s: int = 3


@dataclass(kw_only=True)
class Event:
    """One call as the audit log would show it."""

    webhook: str
    round: int
    mutated: bool
    patch: list[Any]
    annotations: dict[str, str]


@dataclass(kw_only=True)
class Admitted:
    """An object that got through, and what was said on the way."""

    pod: Manifest
    warnings: list[str]
    events: list[Event]

    def event(self, name: str, number: int = 0) -> Event:
        """Return the event of a webhook in a round."""
        return next(event for event in self.events if event.webhook == name and event.round == number)

    def rounds(self, name: str) -> int:
        """Return how often a webhook was called."""
        return sum(event.webhook == name for event in self.events)


class RemoteWebhook:
    """Calls a served webhook as the API server's client does: TLS with the service's name, HTTP/1.1, keep-alive."""

    def __init__(self, port: int, path: str, bundle: Path, *, name: str = SERVICE) -> None:
        self.port = port
        self.path = path
        self.name = name
        self.context = ssl.create_default_context(cafile=str(bundle))
        self.context.set_alpn_protocols(["http/1.1"])
        self.serials: list[str] = []
        self._connection: http.client.HTTPConnection | None = None

    def __call__(self, review: bytes, timeout_s: int) -> bytes:
        """Return the body of the response. Raises: CallFailed, for everything that is no 2xx JSON too."""
        headers = {
            "User-Agent": "kube-apiserver-admission",
            "Accept": "application/json, */*",
            "Content-Type": "application/json",
            "Accept-Encoding": "gzip",
        }
        connection = self._connection or self.connect(timeout_s)
        self._connection = None
        try:
            connection.request("POST", f"{self.path}?timeout={timeout_s}s", review, headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise CallFailed(f"failed to call webhook: {error!r}") from error
        if response.will_close:
            connection.close()
        else:
            self._connection = connection
        if not 200 <= response.status < 300:
            raise CallFailed(f"failed to call webhook: {response.status}: {body.decode()!r}")
        if (response.getheader("Content-Type") or "").partition(";")[0] != "application/json":
            raise CallFailed("failed to call webhook: the response is no JSON")
        return body

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """Open a verified connection, and note the certificate's serial number."""
        try:
            plain = socket.create_connection(("127.0.0.1", self.port), timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as Go does
            wrapped = self.context.wrap_socket(plain, server_hostname=self.name)
        except OSError as error:
            raise CallFailed(f"failed to call webhook: {error}") from error
        certificate = wrapped.getpeercert() or {}
        self.serials.append(str(certificate.get("serialNumber")))
        connection = http.client.HTTPConnection(self.name, self.port, timeout=timeout_s)
        connection.sock = wrapped
        return connection

    def close(self) -> None:
        """Close the idle connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(kw_only=True)
class FakeApiServer:
    """Admits pods. `mutating` is in the order of configuration names, as the real one sorts them."""

    mutating: list[Webhook] = field(default_factory=list)
    validating: list[Webhook] = field(default_factory=list)
    container_defaults: Manifest | None = None  # a LimitRange's
    pod_security: str = "privileged"

    def create(self, pod: Manifest, *, namespace: str = "default", dry_run: bool = False) -> Admitted:
        """Admit a new pod. Raises: Rejected, InternalError, CallFailed."""
        pod = default_pod(self._decode(pod))
        pod["metadata"].setdefault(
            "managedFields", [{"manager": "kubectl", "operation": "Update", "apiVersion": "v1"}]
        )
        request = _request("CREATE", namespace, pod, dry_run=dry_run)
        run = _Run(request, self)
        pod = run.mutate(pod)
        pod["metadata"].setdefault("namespace", namespace)
        run.validate(pod, self.validating)
        if faults := validation_faults(pod):
            raise Rejected("Pod is invalid: " + "; ".join(faults), code=422, reason="Invalid")
        self._check_pod_security(pod)
        return Admitted(pod=pod, warnings=run.replayed_warnings(), events=run.events)

    def review(self, operation: str, pod: Manifest | None, **more: Any) -> Admitted:
        """Send one operation other than a plain creation through every webhook that takes it."""
        request = _request(operation, more.pop("namespace", "default"), pod, **more)
        run = _Run(request, self)
        result = run.mutate(pod) if pod is not None else run.mutate_nothing()
        run.validate(result, self.validating)
        return Admitted(pod=result, warnings=run.replayed_warnings(), events=run.events)

    def plugins(self, pod: Manifest) -> Manifest:
        """Return the pod after the built-in plugins that run before the webhooks, in each round."""
        pod = copy.deepcopy(pod)
        for container in _containers(pod):
            for kind, amounts in (self.container_defaults or {}).items():
                mine = container.setdefault("resources", {}).setdefault(kind, {})
                for name, amount in amounts.items():
                    mine.setdefault(name, amount)
        _mount_token(pod)
        return pod

    def _decode(self, pod: Manifest) -> Manifest:
        try:
            decoded = decode_typed(json.loads(json.dumps(pod)))
        except NotDecodable as error:
            raise Rejected(str(error), code=400, reason="BadRequest") from error
        assert isinstance(decoded, dict)
        return decoded

    def _check_pod_security(self, pod: Manifest) -> None:
        """Refuse what the namespace's level forbids: this plugin sees what the webhooks made of the pod."""
        if self.pod_security == "privileged":
            return
        for container in _containers(pod):
            if (container.get("securityContext") or {}).get("privileged"):
                level = f'violates PodSecurity "{self.pod_security}:latest"'
                raise Rejected(
                    f"{level}: privileged (container {container['name']})", code=403, reason="Forbidden"
                )


class _Run:
    """One request on its way through admission."""

    def __init__(self, request: Manifest, server: FakeApiServer) -> None:
        self.request = request
        self.server = server
        self.events: list[Event] = []
        self.warnings: list[str] = []
        self._annotations: dict[str, str] = {}
        self._uids: set[str] = set()

    def mutate(self, pod: Manifest) -> Manifest:
        """Run both rounds, as mutating/dispatcher.go does."""
        called_before: list[str] = []
        due: set[str] = set()
        is_creation = self.request["operation"] == "CREATE" and not self.request["subResource"]
        if is_creation:
            pod = self.server.plugins(pod)
        again = False
        for webhook in self._matching(self.server.mutating):
            pod, changed = self._call_mutating(webhook, pod, 0)
            if changed:
                due.update(called_before)
                again = True
            if webhook.reinvoked:
                called_before.append(webhook.name)
        if not again or not is_creation:
            return pod
        before = pod
        pod = self.server.plugins(pod)
        if pod != before:
            due.update(called_before)
        for webhook in self._matching(self.server.mutating):
            if webhook.name in due:
                pod, _ = self._call_mutating(webhook, pod, 1)
        return pod

    def mutate_nothing(self) -> Manifest:
        """Call every webhook for a request without an object: a deletion."""
        for webhook in self._matching(self.server.mutating):
            response = self._answer(webhook, 0)
            if response is not None and response.get("patch"):
                raise InternalError("a patch for an object that is null")
        return {}

    def validate(self, pod: Manifest, webhooks: list[Webhook]) -> None:
        """Call the validating webhooks; a patch of theirs is a failed call."""
        self.request["object"] = pod or None
        for webhook in self._matching(webhooks):
            response = self._answer(webhook, 0)
            if response is not None and response.get("patch"):
                raise CallFailed("a validating webhook sent a patch")

    def _matching(self, webhooks: list[Webhook]) -> list[Webhook]:
        """A rule for pods matches no subresource; one for pods/* does."""
        operation, subresource = self.request["operation"], self.request["subResource"]
        return [
            hook
            for hook in webhooks
            if operation in hook.operations and (hook.subresources or not subresource)
        ]

    def _call_mutating(self, webhook: Webhook, pod: Manifest, number: int) -> tuple[Manifest, bool]:
        self.request["object"] = pod
        response = self._answer(webhook, number)
        patch = response.get("patch") if response is not None else None
        if not patch:
            return pod, False
        try:
            operations = json.loads(base64.b64decode(patch, validate=True))
            parsed = jsonpatch.JsonPatch(operations)
        except (ValueError, TypeError, jsonpatch.InvalidJsonPatch) as error:
            raise CallFailed(f"patch cannot be decoded: {error}") from error
        try:
            patched = parsed.apply(copy.deepcopy(pod))
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            raise InternalError(f"patch does not apply: {error}") from error
        try:
            decoded = decode_typed(patched)
        except NotDecodable as error:
            raise InternalError(f"patched object: {error}") from error
        changed = decoded != pod
        self.events[-1].mutated = changed
        self.events[-1].patch = operations
        return default_pod(decoded), changed

    def _answer(self, webhook: Webhook, number: int) -> Manifest | None:
        self.request["uid"] = str(uuid.uuid4())
        assert self.request["uid"] not in self._uids
        self._uids.add(self.request["uid"])
        review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": self.request}
        try:
            body = webhook.call(json.dumps(review).encode(), webhook.timeout_s)
            response = check_response(body, self.request["uid"])
        except CallFailed:
            if webhook.fails_open:
                return None
            raise
        self._record(webhook, response, number)
        if not response["allowed"]:
            raise _rejection(webhook.name, response.get("status") or {})
        return response

    def _record(self, webhook: Webhook, response: Manifest, number: int) -> None:
        event = Event(webhook=webhook.name, round=number, mutated=False, patch=[], annotations={})
        for key, value in (response.get("auditAnnotations") or {}).items():
            if not _AUDIT_KEY.fullmatch(key):
                raise AssertionError(f"audit annotation key {key!r} would be dropped")
            known = self._annotations.setdefault(f"{webhook.name}/{key}", value)
            if known != value and response["allowed"]:
                raise AssertionError(f"audit annotation {key} changed between rounds: the second is refused")
            event.annotations[key] = value
        for warning in response.get("warnings") or ():
            if any(ord(char) < 32 or ord(char) == 127 for char in warning):
                raise AssertionError(f"the warning {warning!r} would vanish: it holds control characters")
            if warning not in self.warnings:
                self.warnings.append(warning)
        self.events.append(event)

    def replayed_warnings(self) -> list[str]:
        """Return the warnings as the client sees them: all cut short once they are too much together."""
        if sum(map(len, self.warnings)) <= _WARNING_TOTAL:
            return list(self.warnings)
        replayed: list[str] = []
        for warning in self.warnings:
            cut = warning[:_WARNING_CUT]
            if sum(map(len, replayed)) + len(cut) > _WARNING_TOTAL:
                break
            replayed.append(cut)
        return replayed


def check_response(body: bytes, uid: str) -> Manifest:
    """Return the response of a review. Raises: CallFailed, for each thing the API server checks."""
    try:
        review = json.loads(body)
    except ValueError as error:
        raise CallFailed(f"the response is no JSON: {error}") from error
    if not isinstance(review, dict) or (review.get("apiVersion"), review.get("kind")) != (
        "admission.k8s.io/v1",
        "AdmissionReview",
    ):
        raise CallFailed("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview")
    response = review.get("response")
    if not isinstance(response, dict):
        raise CallFailed("webhook response was absent")
    if response.get("uid") != uid:
        raise CallFailed(f"expected response.uid {uid!r}, got {response.get('uid')!r}")
    if type(response.get("allowed")) is not bool:
        raise CallFailed("response.allowed is no boolean")
    patch, patch_type = response.get("patch"), response.get("patchType")
    if bool(patch) != (patch_type is not None):
        raise CallFailed("response.patch and response.patchType must be there both or neither")
    if patch_type not in (None, "JSONPatch"):
        raise CallFailed(f"unsupported patch type {patch_type!r}")
    for field_name, kind in (("warnings", list), ("auditAnnotations", dict), ("status", dict)):
        if not isinstance(response.get(field_name, kind()), kind):
            raise CallFailed(f"response.{field_name} has the wrong type")
    return response


def _rejection(webhook: str, status: Manifest) -> Rejected:
    message = status.get("message") or status.get("reason")
    text = f'admission webhook "{webhook}" denied the request'
    return Rejected(
        f"{text}: {message}" if message else f"{text} without explanation",
        code=max(int(status.get("code") or 400), 400),
        reason=str(status.get("reason") or ""),
    )


def _request(
    operation: str,
    namespace: str,
    pod: Manifest | None,
    *,
    old: Manifest | None = None,
    subresource: str = "",
    dry_run: bool = False,
) -> Manifest:
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    metadata = (pod or old or {}).get("metadata") or {}
    return {
        "uid": "",
        "kind": kind,
        "resource": resource,
        "subResource": subresource,
        "requestKind": kind,
        "requestResource": resource,
        "requestSubResource": subresource,
        "name": metadata.get("name", ""),
        "namespace": namespace,
        "operation": operation,
        "userInfo": {
            "username": "system:serviceaccount:kube-system:replicaset-controller",
            "groups": ["system:authenticated"],
        },
        "object": pod,
        "oldObject": old,
        "dryRun": dry_run,
        "options": {"kind": f"{operation.capitalize()}Options", "apiVersion": "meta.k8s.io/v1"},
    }


def _containers(pod: Manifest) -> list[Manifest]:
    return [*(pod["spec"].get("initContainers") or ()), *(pod["spec"].get("containers") or ())]


def _mount_token(pod: Manifest) -> None:
    """The ServiceAccount plugin: a token in every container that has nothing at its path. It runs again in round two."""
    spec = pod["spec"]
    if spec.get("automountServiceAccountToken") is False:
        return
    volumes = spec.setdefault("volumes", []) if spec.get("volumes") is None else spec["volumes"]
    token = next((v["name"] for v in volumes if v["name"].startswith("kube-api-access-")), None)
    for container in _containers(pod):
        mounts = container.get("volumeMounts") or []
        if any(mount["mountPath"] == TOKEN_PATH for mount in mounts):
            continue
        if token is None:
            token = "kube-api-access-abcde"
            sources = [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]
            volumes.append({"name": token, "projected": {"defaultMode": 420, "sources": sources}})
        container["volumeMounts"] = [*mounts, {"name": token, "mountPath": TOKEN_PATH, "readOnly": True}]
