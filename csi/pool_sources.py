"""How a pool is named in a class and in a volume's context. Pure."""

from sidemount.model.class_choice import serves
from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import InvalidRequest
from sidemount.model.provisioned import POOL_SCHEMES, pool_source
from sidemount.model.source_uri import scheme_of


def is_bucket(pool: str) -> bool:
    """Tell whether a pool is a prefix in a bucket."""
    return "://" in pool


def source_in(driver_class: DriverClass, pool: str) -> str:
    """Return the pool's source as a class allows it, "" if it does not: with a slash at its end, or without."""
    source = pool_source(pool)
    if scheme_of(source) not in POOL_SCHEMES.get(driver_class.filesystem, ()):
        return ""
    forms = (source, f"{source}/") if is_bucket(pool) else (source,)
    return next((form for form in forms if serves(driver_class, form)), "")


def no_copies(pool: str) -> InvalidRequest:
    """Return the refusal of snapshots and clones."""
    return InvalidRequest(
        f"pool {pool} is a bucket, whose volumes are made empty: it has no snapshots and no clones",
        hint="copy the objects, or use a pool that is a directory",
    )
