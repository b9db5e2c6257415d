"""One pod with everything that containers of real pods bring, and what each of them sees of its volumes. Nothing here dies."""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.podlet.client import RunningPod
from sidemount.model.names import TOKEN_PATH
from tests.pods.application import call, idler, sh
from tests.pods.manifests import AS_USER, Json, mount, pod, shell, task
from tests.pods.source_tree import INBOX, POEM, SHELF_TEXT
from tests.pods.stage import Images, Stage

pytestmark = [pytest.mark.root, pytest.mark.fuse]
TEAM = 2000
DAEMONS = ("sidemount-books", "sidemount-notes", "sidemount-papers")
OURS = ("sidemount-keeper", *DAEMONS)
DIRECTORY_CAPABILITIES = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4}


def _manifest(stage: Stage) -> Json:
    books, notes, papers = (stage.tree(name) for name in ("books", "notes", "papers"))
    books.expect_written(INBOX)
    shared = papers.path / "team"
    shared.mkdir()
    os.chown(shared, 0, TEAM)
    shared.chmod(0o2770)
    papers.remember()
    papers.expect_written("team/minutes")
    whole = mount("books", "/books")
    inbox = mount("books", "/inbox", subPath=INBOX)
    app_mounts = [
        {**whole, "mountPropagation": "None"},
        mount("books", "/books-ro", readOnly=True),
        mount("books", "/shelf", subPath="shelf"),
        inbox,
        mount("notes", "/notes"),
        mount("papers", "/papers"),
    ]
    first = task(
        "first",
        "cat /books/poem.txt /shelf/pi.txt >/books/inbox/from-init",
        volumeMounts=[whole, mount("books", "/shelf", subPath="shelf", readOnly=True)],
    )
    helper = shell(
        "helper", "cat /inbox/from-init >/inbox/from-helper", volumeMounts=[inbox], restartPolicy="Always"
    )
    app = idler("app", *app_mounts)
    app["securityContext"] = {**AS_USER, "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False}
    mate = shell("mate", volumeMounts=[whole, inbox])
    del mate["securityContext"]
    return pod(
        {
            "books": stage.source(books),
            "notes": stage.source(notes, "readOnly=true"),
            "papers": stage.source(papers),
        },
        app,
        mate,
        inits=(first, helper),
        securityContext={
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "runAsNonRoot": True,
            "fsGroup": TEAM,
            "supplementalGroups": [3000],
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def team_stage(tmp_path_factory: pytest.TempPathFactory, images: Images) -> Iterator[Stage]:
    """Return the pod's stage. After the last test sources must be as they were but for what was written."""
    with Stage(tmp_path_factory.mktemp("team"), images) as stage:
        yield stage


@pytest.fixture(scope="module")
def team(team_stage: Stage) -> RunningPod:
    """Return the pod."""
    return team_stage.run(_manifest(team_stage))


@pytest.fixture
def library(team_stage: Stage) -> Path:
    """Return the source of `books` on the node."""
    return team_stage.sources / "books"


# What each container sees ---------------------------------------------------------------------------------


def test_an_init_container_reads_and_writes_before_any_application(team: RunningPod) -> None:
    """JuiceFS#1372: init containers' mounts are views too."""
    assert call(team, "app", "seen = open('/inbox/from-init').read()") == POEM + SHELF_TEXT


def test_a_native_sidecar_of_the_users_own_has_the_volume_before_the_applications(team: RunningPod) -> None:
    assert call(team, "app", "seen = open('/books/inbox/from-helper').read()") == POEM + SHELF_TEXT
    status = team.status()
    assert status.containers["helper"].kind == "sidecar"
    assert status.containers["helper"].restart_count == 0


def test_propagation_none_is_overridden_where_the_volume_would_not_be_seen(team: RunningPod) -> None:
    lines = call(team, "app", "seen = open('/proc/self/mountinfo').read().splitlines()")
    mine = [line.split() for line in lines if line.split()[4] == "/books"]
    assert len(mine) == 1
    assert mine[0][6].startswith("master:"), mine
    assert call(team, "app", "seen = open('/books/poem.txt').read()") == POEM


@pytest.mark.parametrize(
    "attempt",
    [
        "seen = open('{}/shelf/new', 'w').close()",
        "seen = open('{}/shelf/private.txt', 'r+').close()",
        "seen = os.truncate('{}/shelf/private.txt', 0)",
        "seen = os.mkdir('{}/new')",
        "seen = os.unlink('{}/inbox/from-init')",
        "seen = os.rename('{}/inbox/from-init', '{}/inbox/x')",
        "seen = os.chmod('{}/shelf/private.txt', 0o777)",
        "seen = os.utime('{}/shelf/private.txt')",
        "seen = os.setxattr('{}/shelf/private.txt', 'user.x', b'x')",
        "seen = os.symlink('x', '{}/new')",
    ],
)
@pytest.mark.parametrize("place", ["/books-ro", "/notes"])
def test_nothing_can_be_changed_through_a_read_only_mount_or_volume(
    team: RunningPod, place: str, attempt: str
) -> None:
    assert call(team, "app", attempt.replace("{}", place)) == "EROFS"


def test_a_read_only_mount_beside_a_writable_one_shows_what_the_other_writes(team: RunningPod) -> None:
    """S2-01, S2-36."""
    code = "open('/books/inbox/seen-by-both', 'w').write('x')\nseen = open('/books-ro/inbox/seen-by-both').read()"
    assert call(team, "app", code) == "x"


def test_every_volume_is_its_own(team: RunningPod) -> None:
    code = (
        "seen = [os.stat(p).st_dev for p in ('/books', '/notes', '/papers', '/books-ro', '/shelf', '/inbox')]"
    )
    books, notes, papers, *views = call(team, "app", code)
    assert len({books, notes, papers}) == 3
    assert set(views) == {books}


def test_a_sub_path_shows_its_directory_and_no_way_out(team: RunningPod) -> None:
    """S2-22."""
    assert sorted(call(team, "app", "seen = os.listdir('/shelf')")) == ["noise.bin", "pi.txt", "private.txt"]
    assert "poem.txt" not in call(team, "app", "seen = os.listdir('/shelf/..')")


def test_a_symlink_in_the_source_leads_into_the_container_never_onto_the_node(team: RunningPod) -> None:
    assert call(team, "app", "seen = os.readlink('/books/outside')") == "/etc"
    assert call(team, "app", "seen = os.listdir('/books/outside') == os.listdir('/etc')") is True


# Who may do what -------------------------------------------------------------------------------------------


def test_permissions_are_those_of_the_container_s_user(team: RunningPod) -> None:
    """The kernel judges by the source's owners and modes: root's daemon lends nobody its rights."""
    assert call(team, "app", "seen = open('/shelf/private.txt').read()") == "mine\n"
    assert call(team, "app", "open('/papers/poem.txt', 'a')\nseen = 'opened'") == "EACCES"
    assert call(team, "app", "seen = os.mkdir('/books/new')") == "EACCES"
    assert call(team, "app", "seen = os.chown('/shelf/private.txt', 0, 0)") == "EPERM"
    assert call(team, "app", "seen = os.mknod('/inbox/null', 0o20666, os.makedev(1, 3))") == "EPERM"


def test_an_application_s_fs_group_opens_what_is_the_group_s(team: RunningPod) -> None:
    """Kubelet changes no owner in a volume of ours: the group is the process's."""
    code = "open('/papers/team/minutes', 'w').write('met')\nstatus = os.stat('/papers/team/minutes')\nseen = [status.st_uid, status.st_gid]"
    assert call(team, "app", code) == [1000, TEAM]


def test_applications_have_no_privilege_and_no_device(team: RunningPod) -> None:
    """S3-11: only the keeper has any."""
    for name in ("app", "mate", "helper"):
        status = _status(team.pid(name))
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0, name
        assert status["Uid"].split() == ["1000"] * 4
    assert call(team, "app", "seen = os.open('/dev/fuse', os.O_RDWR)") == "ENOENT"


def test_daemons_have_no_privilege_beyond_their_class_s(team: RunningPod) -> None:
    expected = sum(1 << bit for bit in DIRECTORY_CAPABILITIES.values())
    for name in DAEMONS:
        status = _status(team.pid(name))
        for kind in ("CapEff", "CapPrm", "CapBnd"):
            assert int(status[kind], 16) == expected, (name, kind, status[kind])
        assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
        assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
        assert call(team, name, "seen = os.open('/dev/fuse', os.O_RDWR)") == "ENOENT"
        mounting = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.mount(b'x', b'/run/sidemount', b'tmpfs', 0, None)\nseen = errno.errorcode[ctypes.get_errno()]"
        assert call(team, name, mounting) == "EPERM"


def test_our_containers_have_no_token_and_cannot_write_to_their_root(team: RunningPod) -> None:
    for name in OURS:
        assert call(team, name, f"seen = os.listdir({TOKEN_PATH!r})") == []
        assert call(team, name, "open('/x', 'w')\nseen = 'written'") == "EROFS"
    assert "token" in call(team, "app", f"seen = os.listdir({TOKEN_PATH!r})")


def test_a_daemon_sees_its_own_volume_s_directory_only(team: RunningPod) -> None:
    for name in DAEMONS:
        seen = call(team, name, "seen = os.listdir('/run/sidemount')")
        assert "keeper.sock" in seen
        assert not {"books", "notes", "papers"} & set(seen)
        assert call(team, name, "seen = os.path.exists('/sidemount')") is False
        volume = name.removeprefix("sidemount-")
        assert ("team" in call(team, name, "seen = os.listdir('/source')")) == (volume == "papers")
    assert call(team, "sidemount-notes", "open('/source/x', 'w')\nseen = 'written'") == "EROFS"


def test_our_containers_outlive_no_one_and_started_once(team: RunningPod) -> None:
    """Fluid#2500: a pod-wide runAsUser and runAsNonRoot must not reach our containers."""
    containers = team.status().containers
    assert {name: containers[name].restart_count for name in OURS} == dict.fromkeys(OURS, 0)
    assert all(_status(team.pid(name))["Uid"].split() == ["0"] * 4 for name in OURS)


# Names across views ----------------------------------------------------------------------------------------


def test_hard_links_and_renames_work_within_a_view(team: RunningPod) -> None:
    code = """
open('/inbox/one', 'w').write('x')
os.link('/inbox/one', '/inbox/two')
os.rename('/inbox/two', '/inbox/three')
seen = [os.stat('/inbox/one').st_nlink, os.path.samefile('/inbox/one', '/inbox/three'), sorted(n for n in os.listdir('/inbox') if n in ('one', 'two', 'three'))]
"""
    assert call(team, "app", code) == [2, True, ["one", "three"]]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("/inbox/across", "/books/inbox/other", id="to-the-same-directory-in-another-view"),
        pytest.param("/inbox/across", "/shelf/other", id="to-another-directory"),
        pytest.param("/inbox/across", "/papers/other", id="to-another-volume"),
    ],
)
def test_hard_links_and_renames_between_views_are_refused_as_between_filesystems(
    team: RunningPod, old: str, new: str
) -> None:
    """Programs such as mv then copy: the file never is half here and half there."""
    assert call(team, "app", f"open({old!r}, 'w')\nseen = os.rename({old!r}, {new!r})") == "EXDEV"
    assert call(team, "app", f"open({old!r}, 'w')\nseen = os.link({old!r}, {new!r})") == "EXDEV"


# What is in it ---------------------------------------------------------------------------------------------


def test_two_containers_that_append_to_one_file_lose_no_line(team: RunningPod) -> None:
    script = "i=0; while [ $i -lt 300 ]; do echo {}-$i >>/inbox/log; i=$((i+1)); done; echo done"
    team.exec("mate", ["sh", "-c", "rm -f /inbox/log /inbox/go; touch /inbox/log; chmod 666 /inbox/log"])
    with ThreadPoolExecutor() as both:
        ended = list(both.map(lambda name: sh(team, name, script.format(name)), ("mate", "helper")))
    assert ended == ["done\n", "done\n"]
    lines = sh(team, "mate", "cat /books/inbox/log").split()
    assert len(lines) == 600
    assert {name: [x for x in lines if x.startswith(name)] for name in ("mate", "helper")} == {
        name: [f"{name}-{i}" for i in range(300)] for name in ("mate", "helper")
    }


def test_a_directory_of_a_thousand_files_is_listed_whole_and_emptied_from_another_container(
    team: RunningPod,
) -> None:
    code = "os.mkdir('/inbox/many')\nfor i in range(1000): open(f'/inbox/many/file-{i:04}', 'w').write(str(i))\nseen = len(os.listdir('/inbox/many'))"
    assert call(team, "app", code) == 1000
    assert sh(team, "mate", "ls /books/inbox/many | wc -l; cat /books/inbox/many/* | md5sum") == (
        "1000\n" + hashlib.md5("".join(map(str, range(1000))).encode()).hexdigest() + "  -\n"
    )
    assert sh(team, "mate", "rm -r /inbox/many && ls /books/inbox | grep many") == ""
    assert call(team, "app", "seen = os.path.exists('/inbox/many')") is False


def test_a_quarter_of_a_gibibyte_is_copied_without_a_wrong_byte(team: RunningPod, library: Path) -> None:
    big = library / INBOX / "big"
    digest = hashlib.md5()
    with big.open("wb") as file:
        for _ in range(256):
            block = os.urandom(1 << 20)
            digest.update(block)
            file.write(block)
    assert (
        sh(team, "mate", "cp /inbox/big /books/inbox/copy && cat /inbox/copy | md5sum", timeout_s=60)
        == f"{digest.hexdigest()}  -\n"
    )
    with (library / INBOX / "copy").open("rb") as file:
        assert hashlib.file_digest(file, "md5").hexdigest() == digest.hexdigest()


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
