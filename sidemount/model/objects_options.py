"""The options of the built-in filesystem `objects`, and what in a class would never reach it. Values are checked by the daemon."""

from collections.abc import Iterable, Iterator, Mapping

from sidemount.model.did_you_mean import suggestion
from sidemount.model.errors import shown
from sidemount.model.options import OptionRule, OptionType

OBJECTS_SCHEMES = ("s3", "gs", "az", "https", "http", "file", "memory")
OBJECTS_OPTIONS: Mapping[str, OptionType] = {
    "attributeTimeout": OptionType.DURATION,
    "blockSize": OptionType.SIZE,
    "cacheBytes": OptionType.SIZE,
    "connections": OptionType.INT,
    "directoryMode": OptionType.STRING,
    "endpoint": OptionType.STRING,
    "entryTimeout": OptionType.DURATION,
    "fileMode": OptionType.STRING,
    "gid": OptionType.INT,
    "ignorePermissions": OptionType.FLAG,
    "knownTimeout": OptionType.DURATION,
    "largestRename": OptionType.INT,
    "memoryCacheBytes": OptionType.SIZE,
    "missingTimeout": OptionType.DURATION,
    "openTimeout": OptionType.DURATION,
    "partSize": OptionType.SIZE,
    "pathStyle": OptionType.FLAG,
    "prefetch": OptionType.STRING,
    "readAhead": OptionType.INT,
    "region": OptionType.STRING,
    "requestTimeout": OptionType.DURATION,
    "retryTimeout": OptionType.DURATION,
    "stagingBytes": OptionType.SIZE,
    "uid": OptionType.INT,
    "uploads": OptionType.INT,
}


def objects_warnings(
    schemes: Iterable[str], options: Mapping[str, OptionRule], cache_size: str
) -> tuple[str, ...]:
    """Return what in a class of that filesystem can never serve a volume, or does nothing."""
    return (
        *(
            f"sources: {scheme}:// is nothing that filesystem objects serves"
            for scheme in sorted({*schemes} - {*OBJECTS_SCHEMES})
        ),
        *_option_warnings(options),
        *(
            f"options.{name} needs cacheSize: without it, it has no effect"
            for name in ("cacheBytes", "stagingBytes")
            if name in options and not cache_size
        ),
    )


def _option_warnings(options: Mapping[str, OptionRule]) -> Iterator[str]:
    for name, rule in options.items():
        wanted = OBJECTS_OPTIONS.get(name)
        if wanted is None:
            yield f"options.{name} is none of filesystem objects; {suggestion(name, OBJECTS_OPTIONS)}"
        elif rule.type is not wanted and (rule.type, wanted) != (OptionType.ENUM, OptionType.STRING):
            yield f"options.{name} is of type {rule.type.value}: filesystem objects takes a {shown(wanted.value)}"
