"""The argv of a volume's external client: the class's command filled in, behind what gives the client its credentials. Pure."""

from collections.abc import Iterable

from sidemount.model.command_template import render_command
from sidemount.model.driver_class import Credentials, DriverClass
from sidemount.model.errors import InvalidRequest
from sidemount.model.mountspec import OptionValue
from sidemount.model.names import CACHE_PATH, SECRETS_PATH
from sidemount.model.options import render_arguments

# Becomes the client itself once it has made the files and the environment, see sidecar/client.py.
STARTER = ("python3", "-m", "sidecar", "client")
_END = "--"


def client_command(
    driver_class: DriverClass,
    *,
    source: str,
    options: Iterable[tuple[str, OptionValue]],
    read_only: bool,
    where: str,
    secrets: str = SECRETS_PATH,
    cache: str = CACHE_PATH,
) -> tuple[str, ...]:
    """Return argv, `${mountpoint}` and `${files}` still in it; nothing for a built-in filesystem. Raises InvalidRequest.

    `secrets` and `cache` are where the client finds its directories.
    """
    if not driver_class.command:
        return ()
    try:
        argv = render_command(
            driver_class.command,
            source=source,
            options=render_arguments(driver_class.options, options),
            read_only=driver_class.read_only_arguments if read_only else (),
            secrets=secrets,
            cache=cache,
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error.message}", hint=error.hint) from error
    return (*_starter(driver_class.credentials, secrets, cache), *argv)


def program_of(command: tuple[str, ...]) -> str:
    """Return the client's program, whatever stands before it."""
    if command[: len(STARTER)] == STARTER and _END in command[:-1]:
        return command[command.index(_END) + 1]
    return command[0]


def _starter(credentials: Credentials, secrets: str, cache: str) -> tuple[str, ...]:
    """Return what makes files and environment of credentials. Only names of keys are in it."""
    if not credentials.files and not credentials.environment:
        return ()
    places = {"${secrets}": secrets, "${cache}": cache}
    argv = [*STARTER, f"--secrets={secrets}", "--files=${files}"]
    if not credentials.required:
        argv.append("--optional")
    for kind, templates in (("file", credentials.files), ("environment", credentials.environment)):
        for name, template in sorted(templates.items()):
            filled = template
            for placeholder, place in places.items():
                filled = filled.replace(placeholder, place)
            argv.append(f"--{kind}={name}={filled}")
    return (*argv, _END)
