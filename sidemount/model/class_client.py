"""The client of a FuseDriverClass: a built-in filesystem, or image and command of another one."""

import re
from dataclasses import dataclass

from sidemount.model.command_template import ARGUMENTS_MAX, argument_fault, placeholders_of
from sidemount.model.driver_class import BUILT_IN_FILESYSTEMS
from sidemount.model.errors import shown
from sidemount.model.fields import Fields

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,511}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """`filesystem`, or `image` and `command`."""

    filesystem: str
    image: str
    command: tuple[str, ...]


def parse_client(spec: Fields) -> Client:
    """Return the client of a spec; faults go to `spec`."""
    filesystem = spec.text("filesystem", _filesystem_fault)
    image = spec.text("image", _image_fault)
    command = _command(spec)
    if spec.has("filesystem"):
        for key in ("image", "command"):
            if spec.has(key):
                spec.fault(key, "excludes filesystem", "keep filesystem, or image and command")
    elif not spec.has("image") and not spec.has("command"):
        known = " or ".join(BUILT_IN_FILESYSTEMS)
        spec.fault("filesystem", "is missing", f"write {known}, or give image and command of another client")
    else:
        for key, other in (("image", "command"), ("command", "image")):
            if not spec.has(key):
                spec.fault(key, f"is missing; {other} needs it")
    return Client(filesystem=filesystem, image=image, command=command)


def _command(spec: Fields) -> tuple[str, ...]:
    raw = spec.raw.get("command")
    if raw is None:
        return ()
    if not isinstance(raw, list) or not raw or len(raw) > ARGUMENTS_MAX:
        spec.fault("command", f"must be a list of 1 to {ARGUMENTS_MAX} texts, not {shown(raw)}")
        return ()
    before = len(spec.faults)
    for i, argument in enumerate(raw):
        why = argument_fault(argument) if isinstance(argument, str) else "is not a text; put it in quotes"
        if why:
            spec.fault(f"command[{i}]", f"{shown(argument)} {why}")
    if len(spec.faults) > before:
        return ()
    if not raw[0] or placeholders_of(raw[:1]):
        spec.fault(
            "command[0]", f"{shown(raw[0])} is no program", "name the program itself, without a placeholder"
        )
    return tuple(raw)


def check_placeholders(
    spec: Fields,
    command: tuple[str, ...],
    *,
    has_options: bool,
    has_secrets: bool,
    has_files: bool,
    has_cache: bool,
) -> None:
    """A placeholder without what it stands for, or the other way round, would show at mount time only."""
    if not command:
        return
    used = placeholders_of(command)
    if "mountpoint" not in used:
        spec.fault("command", "has no ${mountpoint}", "say where the client takes its mount point")
    if "secrets" in used and not has_secrets:
        spec.fault("command", "has ${secrets}, but credentials.secretKeys names none")
    if "files" in used and not has_files:
        spec.fault("command", "has ${files}, but credentials.files names none")
    if "cache" in used and not has_cache:
        spec.fault("command", "has ${cache}, but cacheSize is not given")
    if has_options and command.count("${options}") != 1:
        spec.fault("command", "must have ${options} exactly once", "the class has options, which go there")


def parse_read_only_arguments(spec: Fields, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the command gets at `${readOnly}` when a volume is read-only; faults go to `spec`."""
    arguments = spec.texts("readOnlyArguments", _plain_argument_fault) or ()
    has_place = command.count("${readOnly}") == 1
    if arguments and not has_place:
        spec.fault(
            "readOnlyArguments",
            "has no place in the command",
            'put "${readOnly}" into it once, an element of its own',
        )
    elif not arguments and "${readOnly}" in command:
        spec.fault("command", "has ${readOnly}, but readOnlyArguments names none")
    return arguments


def _plain_argument_fault(argument: str) -> str:
    if "${" in argument:
        return "has a placeholder; the arguments are taken as they are"
    return argument_fault(argument)


def image_warnings(image: str) -> tuple[str, ...]:
    """Return what is unwise about an image reference."""
    tag = image.rpartition("/")[2].partition(":")[2]
    if not image or "@sha256:" in image or tag not in ("", "latest"):
        return ()
    return (f"image {shown(image)} names no fixed version; name it by digest, or at least by tag",)


def _filesystem_fault(text: str) -> str:
    return (
        "" if text in BUILT_IN_FILESYSTEMS else f"is not built in; known: {', '.join(BUILT_IN_FILESYSTEMS)}"
    )


def _image_fault(text: str) -> str:
    return "" if _IMAGE.match(text) else "is no image reference"
