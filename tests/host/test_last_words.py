"""What a container that fails leaves for `kubectl describe`."""

from pathlib import Path

from sidemount.host.last_words import leave_last_words
from sidemount.model.errors import HostFailure


def test_it_is_one_sentence_with_reason_and_way_out(tmp_path: Path) -> None:
    place = tmp_path / "termination-log"
    place.write_text("of an earlier run, and longer than what comes now" * 10)
    leave_last_words(HostFailure("source /srv/a: permission denied", hint="let uid 7 read it"), str(place))
    assert place.read_text() == "source /srv/a: permission denied (HostFailure); let uid 7 read it\n"


def test_it_is_no_longer_than_kubelet_reads(tmp_path: Path) -> None:
    place = tmp_path / "termination-log"
    place.touch()
    leave_last_words(HostFailure("x" * 9000), str(place))
    assert place.stat().st_size == 2048


def test_nothing_is_made_where_kubelet_has_made_nothing(tmp_path: Path) -> None:
    leave_last_words(HostFailure("x"), str(tmp_path / "none"))
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    leave_last_words(HostFailure("x"), str(tmp_path / "link"))
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
