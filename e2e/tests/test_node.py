"""The node and its pods: that this is a Kubernetes cluster like others."""

import json

from e2e.cluster.kubectl import Json, Kubectl
from e2e.cluster.running import RunningCluster
from e2e.tests.images import sidemount
from e2e.tests.pods import Namespace, has_ended, pod, shell, task

_ASK = """
import os, ssl, sys, time, urllib.request
trust = ssl.create_default_context(cafile="/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
while True:
    try:
        with urllib.request.urlopen(sys.argv[1].format(**os.environ), timeout=2, context=trust) as answer:
            print(answer.read().decode(), end="")
            break
    except OSError as error:
        with open("/dev/termination-log", "w") as why:  # `kubectl describe` tells it; what is printed is the answer alone
            why.write(str(error))
        time.sleep(0.2)
"""


def _asks(url: str) -> Json:
    """Return a container that asks until it is answered, and prints the answer. busybox's own client dies of its static libc."""
    return {
        "name": "app",
        "image": sidemount(),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", _ASK, url],
    }


def test_the_node_is_ready_and_says_its_version(cluster: RunningCluster, api: Kubectl) -> None:
    node = api.get("node", cluster.description.node)
    assert node is not None
    conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.37.2"
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")


def test_a_pod_runs_speaks_and_takes_commands(namespace: Namespace) -> None:
    namespace.run(pod("plain", shell("app", "echo hello from $HOSTNAME")))
    namespace.printed("plain", "app", "hello from plain\n")
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    assert namespace.exec("plain", "app", "ls", token).split() == ["ca.crt", "namespace", "token"]
    assert namespace.exec("plain", "app", "cat", f"{token}/namespace") == namespace.name
    namespace.delete("plain")


def test_a_pod_that_ends_is_done(namespace: Namespace) -> None:
    namespace.create(pod("done", task("app", "exit 0"), restartPolicy="Never"))
    namespace.create(pod("failed", task("app", "exit 3"), restartPolicy="Never"))
    assert namespace.until("done", has_ended, "ended")["status"]["phase"] == "Succeeded"
    assert namespace.until("failed", has_ended, "ended")["status"]["phase"] == "Failed"


def test_a_service_leads_to_its_pods(namespace: Namespace) -> None:
    serve = "mkdir /www; echo served >/www/index.html; exec httpd -f -p 8080 -h /www"
    probe = {"httpGet": {"port": 8080, "path": "/index.html"}, "periodSeconds": 1}
    namespace.run(pod("server", task("app", serve, readinessProbe=probe), labels={"app": "server"}))
    service = namespace.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "server"},
            "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
        }
    )
    url = f"http://{service['spec']['clusterIP']}/index.html"
    namespace.create(pod("client", _asks(url), restartPolicy="Never"))
    assert namespace.until("client", has_ended, "served")["status"]["phase"] == "Succeeded"
    namespace.printed("client", "app", "served\n")


def test_a_pod_reaches_the_api_server(api: Kubectl, namespace: Namespace) -> None:
    """As services of ours do: by its Service's address, trusting the authority that pods are given."""
    url = "https://{KUBERNETES_SERVICE_HOST}:{KUBERNETES_SERVICE_PORT}/version"
    namespace.create(pod("client", _asks(url), restartPolicy="Never"))
    assert namespace.until("client", has_ended, "answered")["status"]["phase"] == "Succeeded"
    told = json.loads(namespace.logs("client", "app"))
    assert told["gitVersion"] == json.loads(api.run("get", "--raw=/version"))["gitVersion"]
