"""Templates: classes of other clients that come with the package, one file each, to be edited and applied."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sidemount.commands.output import EXIT_OK, as_json, as_yaml, table
from sidemount.model.did_you_mean import suggestion
from sidemount.model.driver_class import DriverClass
from sidemount.model.driver_class_manifest import parse_driver_class
from sidemount.model.errors import InvalidRequest, shown

TEMPLATES = Path(__file__).parent.parent / "samples" / "clients"
EVIDENCE = "sidemount.io/evidence"
PROVEN = "proven"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One file. `is_proven`: its client is run in our own tests; else it is written from the client's documentation."""

    name: str
    text: str
    driver_class: DriverClass
    is_proven: bool


def templates() -> dict[str, Template]:
    """Return every template by its client's name."""
    return {path.stem: _template(path) for path in sorted(TEMPLATES.glob("*.yaml"))}


def template_of(name: str) -> Template:
    """Return one. Raises InvalidRequest."""
    found = templates()
    if name not in found:
        hint = suggestion(name, found) or f"there are: {', '.join(found)}"
        raise InvalidRequest(f"there is no template for {shown(name)}", hint=hint)
    return found[name]


def print_template(name: str) -> int:
    """Print a template as it is, comments and all. Raises InvalidRequest."""
    print(template_of(name).text, end="")
    return EXIT_OK


def print_templates(output: str) -> int:
    """Print what there is."""
    rows = [_row(each) for each in templates().values()]
    if output == "table":
        header = ("CLIENT", "EVIDENCE", "SOURCES", "PRIVILEGE", "READ-ONLY", "CREDENTIALS")
        print(table(header, [tuple(row.values()) for row in rows]))
    else:
        found = {"templates": rows}
        print(as_json(found) if output == "json" else as_yaml([found]).rstrip("\n"))
    return EXIT_OK


def _row(template: Template) -> dict[str, str]:
    known = template.driver_class
    return {
        "client": template.name,
        "evidence": PROVEN if template.is_proven else "unproven",
        "sources": ",".join(known.sources),
        "privilege": "none" if known.abilities.descriptor else "privileged",
        "readOnly": known.abilities.read_only,
        "credentials": ",".join(known.credentials.secret_keys) or "-",
    }


def _template(path: Path) -> Template:
    text = path.read_text(encoding="utf-8")
    manifest: dict[str, Any] = yaml.safe_load(text)
    labels = manifest["metadata"].get("labels", {})
    return Template(
        name=path.stem,
        text=text,
        driver_class=parse_driver_class(manifest),
        is_proven=labels.get(EVIDENCE) == PROVEN,
    )
