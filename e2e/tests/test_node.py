"""The node and its pods: that this is a Kubernetes cluster like others."""

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.running import RunningCluster
from e2e.tests.pods import Namespace, has_ended, pod, shell, task


def test_the_node_is_ready_and_says_its_version(cluster: RunningCluster, api: Kubectl) -> None:
    node = api.get("node", cluster.description.node)
    assert node is not None
    conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.37.2"
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")


def test_a_pod_runs_speaks_and_takes_commands(namespace: Namespace) -> None:
    namespace.run(pod("plain", shell("app", "echo hello from $HOSTNAME")))
    assert namespace.logs("plain", "app") == "hello from plain\n"
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
    address = service["spec"]["clusterIP"]
    ask = f"until wget -q -T 2 -O - http://{address}/index.html; do sleep 0.2; done"
    namespace.create(pod("client", task("app", ask), restartPolicy="Never"))
    assert namespace.until("client", has_ended, "served")["status"]["phase"] == "Succeeded"
    assert namespace.logs("client", "app") == "served\n"


def test_a_pod_reaches_the_api_server(namespace: Namespace) -> None:
    """Services of ours talk to it from pods, without a cluster's DNS."""
    ask = (
        "until wget -q -T 2 --no-check-certificate -O - "
        "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/version; do sleep 0.2; done"
    )
    namespace.create(pod("client", task("app", ask), restartPolicy="Never"))
    assert namespace.until("client", has_ended, "answered")["status"]["phase"] == "Succeeded"
    assert '"gitVersion": "v1.37.2"' in namespace.logs("client", "app")
