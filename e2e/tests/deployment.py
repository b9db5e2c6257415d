"""Sidemount on the cluster as docs/install.md installs it: the default overlay with the run's image, the first class; and its end."""

import json
import re
import shlex
from pathlib import Path

import yaml

from e2e.cluster.kubectl import Kubectl, KubectlFailed
from e2e.cluster.places import SOURCE
from e2e.cluster.waiting import wait_for
from e2e.tests.images import sidemount
from e2e.tests.pods import pod, task
from e2e.tests.rendered import MANIFESTS
from sidemount.model.names import OWN_NAMESPACE

DEPLOYMENT = "webhook"
CONFIGURATIONS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
_PAGE = SOURCE / "docs/install.md"
_ROLLOUT_S, _ASKED_S, _GONE_S = 240.0, 120.0, 180.0
_APPLY_S = 120.0
_LOG_LINES = 40


class Installation:
    """One installation for all tests of a run. `directory` is the run's own, for the overlay that is applied."""

    def __init__(self, api: Kubectl, directory: Path) -> None:
        self.api = api
        self.overlay = write_overlay(directory)

    def ensure(self) -> None:
        """Install unless a webhook is there that is asked. Whoever changes the installation in a test puts it right by this."""
        if self.is_there() and self.is_asked():
            return
        self.install()

    def install(self) -> None:
        """Do what the page says, in its order, and wait until pods are injected. An error names what the webhook said."""
        self.api.run("apply", "-k", str(self.overlay), timeout_s=_APPLY_S)
        self.roll_out()
        self.api.run("apply", "-k", str(MANIFESTS / "classes"))
        # Available is not yet reachable: kube-proxy learns of the pods a moment later.
        assert wait_for(self.is_asked, _ASKED_S), f"the API server does not reach the webhook\n{self.told()}"

    def roll_out(self) -> None:
        """Wait until every replica is the one that is wanted, and available."""
        wait = f"--timeout={_ROLLOUT_S:g}s"
        try:
            self._of_ours("rollout", "status", f"deployment/{DEPLOYMENT}", wait, timeout_s=_ROLLOUT_S + 30)
        except KubectlFailed as fault:
            raise AssertionError(f"{fault}\n{self.told()}") from None

    def uninstall(self) -> None:
        """Do what the page says under "Remove", in its order, and wait until nothing is left."""
        for command in remove_commands():
            self.api.run(*command, "--ignore-not-found", timeout_s=_GONE_S)
        assert wait_for(lambda: not self.is_there(), _GONE_S), "the namespace does not go"

    def is_there(self) -> bool:
        """Tell whether there is anything to uninstall."""
        return self.api.get("namespace", OWN_NAMESPACE) is not None

    def is_asked(self) -> bool:
        """Tell whether the API server reaches the webhook: it refuses a pod that asks where nobody may."""
        asking = pod("asking", task("app", "true"), annotations={"volume.sidemount.io/x": "dir:///srv/x"})
        try:
            self.api.run(
                "create", "--dry-run=server", "--namespace=default", "-f", "-", text=json.dumps(asking)
            )
        except KubectlFailed as fault:
            return "denied the request" in fault.reason
        return False

    def scale(self, replicas: int) -> None:
        """Ask for another number of replicas, and wait for nothing."""
        self._of_ours("scale", f"deployment/{DEPLOYMENT}", f"--replicas={replicas}")

    def told(self) -> str:
        """Return what a person would look at first."""
        told = []
        for arguments in (
            ("get", "pods", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            ("logs", f"--selector=app.kubernetes.io/name={DEPLOYMENT}", "--all-containers", "--prefix", f"--tail={_LOG_LINES}"),
        ):  # fmt: skip
            try:
                told.append(self._of_ours(*arguments))
            except KubectlFailed as fault:
                told.append(str(fault))
        return "\n".join(told)

    def _of_ours(self, *arguments: str, timeout_s: float = 60.0) -> str:
        return self.api.run(*arguments, f"--namespace={OWN_NAMESPACE}", timeout_s=timeout_s)


def write_overlay(directory: Path) -> Path:
    """Write the page's own example of an overlay, for the run's image, beside a link to `manifests/`; return where it is."""
    overlay = yaml.safe_load(page_overlay())
    overlay["resources"] = ["../manifests/overlays/default"]
    repository, _, tag = sidemount().rpartition(":")
    (image,) = overlay["images"]
    image |= {"newName": repository, "newTag": tag}
    (directory / "manifests").symlink_to(MANIFESTS)
    (own := directory / "own").mkdir()
    (own / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return own


def page_overlay() -> str:
    """Return the overlay that docs/install.md shows."""
    (text,) = re.findall(r"```yaml\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    return str(text)


def remove_commands() -> list[list[str]]:
    """Return the arguments of each kubectl command that docs/install.md shows under "Remove"."""
    page = _PAGE.read_text().partition("## Remove")[2]
    found = [shlex.split(line) for line in re.findall(r"^\$ kubectl (.*)$", page, re.MULTILINE)]
    assert len(found) == 3
    return [[word.replace("manifests/", f"{MANIFESTS}/") for word in words] for words in found]
