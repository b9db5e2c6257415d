"""Frames and their bodies: what is written is read, and nothing else is."""

import array
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.host import handover, wire
from sidemount.host.handover import (
    Adopted,
    Answer,
    Ask,
    Bye,
    Heartbeat,
    Hello,
    Holds,
    Message,
    Numbers,
    Offer,
    Ready,
    Refusal,
    Refused,
    Registered,
    Registers,
    Serve,
    Stop,
    Stopping,
    Unregister,
    Wanted,
)
from sidemount.host.wire import FRAME_MAX, Kind
from sidemount.model.errors import BadMessage
from sidemount.model.mountspec import MountSpec
from tests.host.mount_node import eventually

COUNT = st.integers(0, 2**63 - 1)
INIT = st.binary(max_size=300)
BACKING = st.integers(0, handover.BACKING_MAX)
SPECS = st.builds(
    MountSpec,
    volume=st.just("train"),
    driver_class=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    source=st.just("dir:///srv"),
    filesystem=st.just("directory"),
    read_only=st.booleans(),
    descriptor=st.booleans(),
    uid=st.integers(0, 2**32 - 2),
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, takeover=st.booleans(), hands_back=st.booleans(), generation=COUNT, init=INIT),
    st.builds(Serve, spec=SPECS, generation=COUNT, continued=st.booleans(), init=INIT, heartbeat_ms=COUNT),
    st.builds(Ready, generation=COUNT),
    st.builds(Heartbeat, handled=COUNT, in_progress=COUNT),
    st.just(Stopping()),
    st.just(Stop()),
    st.builds(Bye, clean=st.booleans()),
    st.builds(Refused, reason=st.sampled_from(Refusal), detail=st.text(max_size=100)),
    st.builds(Adopted, generation=COUNT),
    st.just(Ask()),
    st.builds(Answer, told_to_end=st.booleans()),
    st.just(Offer()),
    st.just(Wanted()),
    st.builds(Holds, backings=st.lists(BACKING, max_size=5).map(tuple)),
    st.just(Registers()),
    st.builds(Registered, number=COUNT, backing=BACKING),
    st.builds(Unregister, backing=BACKING),
    st.builds(Numbers, process=COUNT, values=st.dictionaries(st.text(max_size=20), COUNT, max_size=5)),
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected SEQPACKET sockets."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ends
    for end in ends:
        end.close()


@given(MESSAGES)
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    assert handover.decode(*handover.encode(message)) == message


@given(st.sampled_from(Kind), st.binary(max_size=200))
def test_junk_bodies_raise_nothing_but_our_error(kind: Kind, body: bytes) -> None:
    with contextlib.suppress(BadMessage):
        handover.decode(kind, body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(MESSAGES, st.data())
def test_one_wrong_field_raises_nothing_but_our_error(message: Message, data: st.DataObject) -> None:
    kind, body = handover.encode(message)
    fields = json.loads(body)
    name = data.draw(st.sampled_from([*fields, "extra"]))
    fields[name] = data.draw(JSON)
    try:
        decoded = handover.decode(kind, json.dumps(fields).encode())
    except BadMessage:
        return
    assert name != "extra"
    assert type(decoded) is type(message)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([], id="list"),
        pytest.param({"store_requests": -1}, id="negative"),
        pytest.param({"store_requests": 1 << 63}, id="huge"),
        pytest.param({"store_requests": 1.0}, id="float"),
        pytest.param({"store_requests": True}, id="flag"),
        pytest.param({"n" * 65: 1}, id="long name"),
        pytest.param({str(number): 1 for number in range(257)}, id="many"),
        pytest.param({"x" * 64 + str(number): 10**17 for number in range(200)}, id="long"),
    ],
)
def test_numbers_are_bounded(values: object) -> None:
    with pytest.raises(BadMessage):
        handover.decode(Kind.NUMBERS, json.dumps({"process": 1, "values": values}).encode())


@given(st.binary(max_size=300))
def test_junk_frames_raise_nothing_but_our_error(data: bytes) -> None:
    with contextlib.suppress(BadMessage):
        wire.parse(data)


def frame(
    magic: bytes = b"SMNT",
    version: int = wire.VERSION,
    kind: int = Kind.STOP,
    body: bytes = b"{}",
    extra: int = 0,
) -> bytes:
    """Return a frame, right unless told otherwise."""
    header = magic + version.to_bytes(2) + kind.to_bytes(2) + (len(body) + extra).to_bytes(4)
    return header + body


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(frame(magic=b"HTTP"), "not a frame of ours", id="magic"),
        pytest.param(frame(version=2), "contract version 2, this program speaks 1", id="version"),
        pytest.param(frame(kind=999), "unknown kind 999", id="kind"),
        pytest.param(frame(extra=1), "claims to be 3", id="short body"),
        pytest.param(frame(extra=-1), "claims to be 1", id="long body"),
        pytest.param(frame()[:11], "shorter than its header", id="short header"),
        pytest.param(b"\0" * (FRAME_MAX + 1), f"longer than {FRAME_MAX}", id="too long"),
    ],
)
def test_a_bad_frame_says_what_is_bad(data: bytes, says: str) -> None:
    assert wire.parse(frame()) == (Kind.STOP, b"{}")
    with pytest.raises(BadMessage, match=says):
        wire.parse(data)


def test_a_frame_carries_one_descriptor(pair: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    ours, theirs = pair
    with (tmp_path / "file").open("w+") as file:
        file.write("content")
        file.flush()
        wire.send(ours, Kind.SERVE, b"{}", file.fileno())
    received = wire.receive(theirs)
    assert received is not None
    descriptor = received.take_descriptor()
    assert not os.get_inheritable(descriptor)
    assert os.pread(descriptor, 100, 0) == b"content"
    os.close(descriptor)
    with pytest.raises(BadMessage, match="without its descriptor"):
        received.take_descriptor()


@pytest.mark.parametrize("count", [2, 16, 17, 200])
def test_more_descriptors_are_refused_and_closed(
    pair: tuple[socket.socket, socket.socket], count: int
) -> None:
    ours, theirs = pair
    before = set(os.listdir("/proc/self/fd"))
    with open("/dev/null") as null:
        rights = array.array("i", [null.fileno()] * count)
        ours.sendmsg([frame()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    with pytest.raises(BadMessage, match="more than one descriptor"):
        wire.receive(theirs)
    eventually(lambda: set(os.listdir("/proc/self/fd")) <= before)


def test_a_junk_frame_with_a_descriptor_leaks_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    before = set(os.listdir("/proc/self/fd"))
    with open("/dev/null") as null:
        socket.send_fds(ours, [b"junk"], [null.fileno()])
    with pytest.raises(BadMessage):
        wire.receive(theirs)
    eventually(lambda: set(os.listdir("/proc/self/fd")) <= before)


def test_an_oversized_frame_is_refused_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.send(frame(body=b"x" * FRAME_MAX))
    wire.send(ours, Kind.STOP, b"{}")
    with pytest.raises(BadMessage, match="longer than"):
        wire.receive(theirs)
    following = wire.receive(theirs)
    assert following is not None
    assert following.kind is Kind.STOP


def test_nothing_too_long_is_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(BadMessage, match="longer than"):
        wire.send(pair[0], Kind.STATUS, b"x" * FRAME_MAX)


def test_the_socket_of_a_long_directory_is_reached_and_replaced(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 120)
    directory.mkdir()
    for _ in range(2):
        with wire.listen(str(directory), uid=os.geteuid()) as listener:
            assert (directory / "keeper.sock").stat().st_mode & 0o777 == 0o600
            with wire.dial(str(directory), timeout_s=1) as dialled:
                accepted, _ = listener.accept()
                with accepted:
                    assert wire.peer_ids(accepted) == (os.getpid(), os.geteuid(), os.getegid())
                    wire.send(dialled, Kind.PROBE)
                    received = wire.receive(accepted)
                    assert received is not None
                    assert received.kind is Kind.PROBE


@pytest.mark.root
def test_a_planted_link_in_the_sockets_place_is_removed_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("")
    victim.chmod(0o644)
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "keeper.sock").symlink_to(victim)
    with wire.listen(str(directory), uid=65532):
        assert (victim.stat().st_uid, victim.stat().st_mode & 0o777) == (os.geteuid(), 0o644)
        assert (directory / "keeper.sock").is_socket()
        assert (directory / "keeper.sock").stat().st_uid == 65532


def test_a_planted_directory_in_the_sockets_place_keeps_no_keeper_from_starting(tmp_path: Path) -> None:
    (tmp_path / "keeper.sock").mkdir()
    (tmp_path / "keeper.sock" / "file").touch()
    with wire.listen(str(tmp_path), uid=os.geteuid()):
        assert (tmp_path / "keeper.sock").is_socket()


def test_a_linked_run_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(OSError, match=r"Not a directory|symbolic link"):
        wire.listen(str(tmp_path / "link"), uid=0)
