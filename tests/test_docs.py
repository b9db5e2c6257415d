"""The documents say what the code says."""

import re
from pathlib import Path

from sidemount.model.errors import Reason

ROOT = Path(__file__).parent.parent


def test_troubleshooting_has_exactly_one_entry_a_reason() -> None:
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(reason.value for reason in Reason)


def test_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_every_local_link_of_the_documents_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
