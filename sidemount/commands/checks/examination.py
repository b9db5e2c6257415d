"""Examination: reads what the checks need, in order, and makes the trials. Writes nothing: the trials are dry runs."""

import argparse
from collections.abc import Mapping
from typing import Any

from sidemount.commands.checks.certificates import check_certificates
from sidemount.commands.checks.classes import check_classes, read_classes
from sidemount.commands.checks.csi_path import CSI_READINGS, check_driver, check_path, has_driver
from sidemount.commands.checks.finding import Finding, Verdict
from sidemount.commands.checks.installation import (
    APPLY,
    aware_now,
    check_configurations,
    check_deployment,
    check_policies,
    check_type,
    check_version,
    is_installed,
    name_of,
    service_of,
)
from sidemount.commands.checks.leftovers import check_leftovers
from sidemount.commands.checks.namespaces import check_namespaces, labels_of, open_namespaces
from sidemount.commands.checks.nodes import check_nodes
from sidemount.commands.checks.others import check_others
from sidemount.commands.checks.readings import (
    COLLECTIONS,
    LEFTOVERS,
    Reading,
    Readings,
    Wanted,
    read_collection,
    read_collections,
    read_version,
)
from sidemount.commands.checks.trial_answer import read_asking, read_free, read_privileged
from sidemount.commands.checks.trial_pod import asking_pod, asking_trial, plain_pod, privileged_pod
from sidemount.commands.cluster.access import load_access
from sidemount.commands.cluster.api_server import Answer, ApiServer
from sidemount.commands.cluster.facts import facts_of
from sidemount.commands.cluster.paths import object_path, pods_path
from sidemount.commands.health.pod import mapping
from sidemount.host.cluster_reader import ReadFailed
from webhook.gate import POD_SECURITY_LABEL


async def examine(arguments: argparse.Namespace) -> list[Finding]:
    """Return every finding. Raises VolumeError when the cluster cannot be reached at all."""
    access = await load_access(arguments.kubeconfig, arguments.context)
    async with ApiServer(access, call_s=arguments.request_timeout) as api:
        version = await read_version(api)
        wanted = {**COLLECTIONS, **(LEFTOVERS if arguments.uninstalled else {})}
        readings = await read_collections(api, wanted)
        if arguments.uninstalled:
            return await _after_removal(api, readings, arguments.namespace or access.namespace)
        found = [check_version(version)]
        if is_installed(readings):
            found += await _installed(api, readings, arguments.namespace)
        else:
            found += await _not_installed(api, readings, arguments.namespace or access.namespace)
        return found


async def _installed(api: ApiServer, readings: Readings, namespace: str) -> list[Finding]:
    found = [
        check_type(readings["types"]),
        *check_configurations(readings, aware_now()),
        check_policies(readings),
    ]
    service = service_of(readings)
    if service is not None:
        pods = await _pods_of(api, service)
        found.append(check_deployment(service, pods))
        found += await check_certificates(api, service[0], pods)
    found += [
        *check_classes(readings["classes"]),
        *check_namespaces(readings["namespaces"]),
        *check_nodes(readings["nodes"]),
        *check_others(readings["mutating"]),
        check_driver(readings["drivers"]),
    ]
    if has_driver(readings["drivers"]):
        path = await read_collections(api, CSI_READINGS)
        found += check_path(path, readings["nodes"], int(aware_now().timestamp() * 1000))
    found.append(await _try_asking(api, readings, namespace))
    return found


async def _not_installed(api: ApiServer, readings: Readings, namespace: str) -> list[Finding]:
    doubts = [readings[name].fault for name in ("types", "mutating", "validating") if readings[name].fault]
    nothing = Finding(topic="installation", verdict=Verdict.OK, found="none", way_out=APPLY)
    if doubts:
        nothing = Finding(topic="installation", verdict=Verdict.UNKNOWN, found="; ".join(doubts))
    answer = await _try(api, namespace, privileged_pod())
    return [
        nothing,
        *check_nodes(readings["nodes"]),
        *check_others(readings["mutating"]),
        answer if isinstance(answer, Finding) else read_privileged(answer, namespace),
    ]


async def _after_removal(api: ApiServer, readings: Readings, namespace: str) -> list[Finding]:
    found = list(check_leftovers(readings))
    for what, pod in (("plain", plain_pod()), ("asking", asking_pod(None, "dir:///sidemount-doctor"))):
        answer = await _try(api, namespace, pod)
        found.append(answer if isinstance(answer, Finding) else read_free(answer, namespace, what))
    return found


async def _try_asking(api: ApiServer, readings: Readings, namespace: str) -> Finding:
    """Have the API server go through everything that happens to a pod that asks, up to its creation."""
    doubt = readings["namespaces"].doubt("trial") or readings["classes"].doubt("trial")
    if doubt is not None:
        return doubt
    opened = open_namespaces(readings["namespaces"])
    opened.sort(key=lambda each: labels_of(each).get(POD_SECURITY_LABEL, "privileged") != "privileged")
    names = [name_of(each) for each in opened if namespace in ("", name_of(each))]
    _, faults = read_classes(readings["classes"])
    facts = facts_of({name: readings[name].objects for name in ("classes", "namespaces", "nodes", "drivers")})
    trial = asking_trial(names, facts)
    if trial is None:
        where = f"namespace {namespace}" if namespace else "a namespace that is open to injection"
        also = f"; {len(faults)} with faults" if faults else ""
        return Finding(
            topic="trial",
            verdict=Verdict.UNKNOWN,
            found=f"no class serves a pod in {where} by sidecar{also}",
            meaning="so no pod could be tried",
        )
    answer = await _try(api, trial.namespace, trial.manifest)
    if isinstance(answer, Finding):
        return answer
    return read_asking(answer, trial.namespace, trial.driver_class)


async def _try(api: ApiServer, namespace: str, pod: Mapping[str, Any]) -> Answer | Finding:
    try:
        return await api.try_create(pods_path(namespace), pod)
    except ReadFailed as failure:
        return Finding(topic="trial", verdict=Verdict.UNKNOWN, found=f"a pod in {namespace}: {failure}")


async def _pods_of(api: ApiServer, service: tuple[str, str]) -> Reading:
    """Return the pods that a Service stands for."""
    namespace, name = service
    try:
        manifest = await api.read(object_path("services", namespace, name))
    except ReadFailed as failure:
        return Reading(fault=f"Service {name} of {namespace} cannot be read: {failure}")
    selector = mapping(mapping(manifest.get("spec")).get("selector"))
    if not selector:
        return Reading(fault=f"Service {name} of {namespace} selects no pods, so who answers is not known")
    labels = ",".join(f"{key}={value}" for key, value in selector.items())
    right = f"list pods in namespace {namespace}"
    return await read_collection(api, Wanted(path=pods_path(namespace), right=right, selector=labels))
