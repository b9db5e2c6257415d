"""The documents say what the code says."""

import re
from pathlib import Path

from csi.event_reasons import Reason as EventReason
from sidemount.model.errors import Reason

ROOT = Path(__file__).parent.parent


def test_troubleshooting_has_exactly_one_entry_a_reason() -> None:
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(reason.value for reason in Reason)


def test_troubleshooting_says_what_to_do_about_every_event_of_the_node_service() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    table = page.partition("## Events of the CSI path")[2].partition("## Alerts")[0]
    told = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(told) == sorted(reason.value for reason in EventReason)
    monitoring = (ROOT / "docs/monitoring.md").read_text().partition("## Volumes by CSI")[2]
    assert all(f"`{reason.value}`" in monitoring for reason in EventReason)


def test_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_every_local_link_of_the_documents_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
