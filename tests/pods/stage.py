"""What one test runs on: sources, a webhook that knows of them, a node; and what must hold when the test is over."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.podlet.client import Podlet, RunningPod
from e2e.podlet.errors import PodletError
from sidemount.host.mount_table import is_fuse
from sidemount.model.facts import Facts
from sidemount.model.names import KEEPER_CONTAINER, RESERVED_PREFIX
from tests.pods.admission import admit, read_facts
from tests.pods.manifests import BUSYBOX, PYTHON, Json, directory_class, namespace
from tests.pods.source_tree import SourceTree
from webhook.injection_settings import InjectionSettings

LOG_LINES = 30
READY_S = 60.0
SCALE = 0.1  # of back-off, retries and probe periods


@dataclass(frozen=True, slots=True)
class Images:
    """Directories of the images that pods may name."""

    busybox: Path
    sidemount: Path


@dataclass
class Stage:
    """A context manager. On the way out every pod is deleted, and nothing may be left or have changed."""

    directory: Path
    images: Images
    classes: tuple[Json, ...] = ()
    objects: tuple[Json, ...] = ()
    settings: InjectionSettings = field(default_factory=InjectionSettings)
    more_images: Mapping[str, Path] = field(default_factory=dict)
    class_spec: Mapping[str, Any] = field(default_factory=dict)
    claims: Mapping[str, Path] = field(default_factory=dict)
    node: Podlet = field(init=False)
    facts: Facts = field(init=False)
    _trees: list[SourceTree] = field(default_factory=list)
    _pods: list[RunningPod] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        known = (namespace(), directory_class(str(self.sources), **self.class_spec), *self.classes)
        self.facts = read_facts(self.directory / "facts", known)
        images = {
            self.settings.sidecar_image: self.images.sidemount,
            BUSYBOX: self.images.busybox,
            PYTHON: self.images.sidemount,
            **self.more_images,
        }
        node = Podlet(images=images, time_scale=SCALE, objects=self.objects, claims=self.claims)
        self.node = self._stack.enter_context(node)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            try:
                self._finish()
            except (AssertionError, PodletError) as fault:
                if error is None:
                    raise
                error.add_note(f"and afterwards: {fault}")
            finally:
                if error is not None:
                    error.add_note(self.told())

    @property
    def sources(self) -> Path:
        """Where volumes' sources lie; the class `directory` serves everything beneath."""
        return self.directory / "sources"

    def tree(self, name: str = "library") -> SourceTree:
        """Make a source."""
        tree = SourceTree(self.sources / name)
        self._trees.append(tree)
        return tree

    def source(self, tree: SourceTree, query: str = "") -> str:
        """Return the URI that a pod names a source by."""
        return f"dir://{tree.path}{f'?{query}' if query else ''}"

    def admit(self, pod: Json) -> Json:
        """Return the pod as the webhook leaves it."""
        return admit(pod, self.facts, self.settings)

    def start(self, pod: Json, change: Callable[[Json], Json] = lambda admitted: admitted) -> RunningPod:
        """Admit a pod and start it, as `change` returns it."""
        running = self.node.run(change(self.admit(pod)))
        self._pods.append(running)
        return running

    def run(self, pod: Json) -> RunningPod:
        """Admit a pod, start it and wait until all of it is ready."""
        running = self.start(pod)
        running.wait_ready(READY_S)
        return running

    def told(self) -> str:
        """Return what the node and the containers of the last pod have said: for a failure's message."""
        lines = ["node:", *self.node.events[-LOG_LINES:]]
        for running in self._pods[-1:]:
            try:
                for name in running.status().containers:
                    lines += [f"{name}:", *running.logs(name).splitlines()[-LOG_LINES:]]
            except PodletError as fault:
                lines.append(str(fault))
        return "\n".join(lines)

    def _finish(self) -> None:
        for running in self._pods[-1:]:
            _end(running)
            assert not running.leaks(), running.leaks()
        left = [mount.mount_point for mount in self.node.mounts() if is_fuse(mount)]
        assert not left, left
        for tree in self._trees:
            assert not tree.changes(), "\n".join(tree.changes())


def _end(running: RunningPod) -> None:
    """End a pod the quick way: a daemon that is dead has nothing that the keeper would wait for."""
    status = running.status()
    if status.is_gone:
        return
    for container in status.containers.values():
        if container.name.startswith(RESERVED_PREFIX) and container.name != KEEPER_CONTAINER:
            with suppress(PodletError):  # it does not run at the moment
                running.kill(container.name)
    running.delete(0, deadline_s=20)
