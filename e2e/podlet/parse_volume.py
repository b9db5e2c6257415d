"""A volume of a manifest → Volume.

Source: https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/volume/
"""

from e2e.podlet.errors import PodRefused
from e2e.podlet.fields import Fields
from e2e.podlet.parse_container import parse_field_source
from e2e.podlet.pod import (
    Claim,
    EmptyDir,
    FieldProjection,
    FieldRef,
    HostPath,
    Item,
    ObjectProjection,
    Projected,
    Projection,
    TokenProjection,
    Volume,
    VolumeSource,
)
from sidemount.model.errors import shown

ROOT_CA = "kube-root-ca.crt"
_TOKEN_VOLUME = "kube-api-access-podlt"
_HOST_PATH_TYPES = (
    "", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice",
)  # fmt: skip
_MODE_MAX = 0o777


def parse_volume(entry: Fields) -> Volume:
    """Parse one entry of spec.volumes. Raises PodRefused."""
    name = entry.label("name")
    found: list[VolumeSource] = []
    for key, parse in _PARSERS.items():
        if (fields := entry.child(key)) is not None:
            found.append(parse(fields))
            fields.close()
    entry.close()
    if len(found) != 1:
        raise PodRefused(f"{entry.where}: needs exactly one source of {', '.join(_PARSERS)}")
    return Volume(name=name, source=found[0])


def token_volume() -> Volume:
    """Return the volume that the API server adds for the service account."""
    namespace = Item(key="", path="namespace", mode=None, source=FieldRef(path="metadata.namespace"))
    certificate = Item(key="ca.crt", path="ca.crt", mode=None)
    sources: tuple[Projection, ...] = (
        TokenProjection(path="token"),
        ObjectProjection(kind="ConfigMap", name=ROOT_CA, items=(certificate,), optional=False),
        FieldProjection(items=(namespace,)),
    )
    return Volume(
        name=_TOKEN_VOLUME, source=Projected(plugin="projected", sources=sources, default_mode=0o644)
    )


def _empty_dir(fields: Fields) -> VolumeSource:
    medium = fields.choice("medium", ("", "Memory"), "")
    return EmptyDir(memory=medium == "Memory", size_limit_bytes=fields.quantity("sizeLimit"))


def _host_path(fields: Fields) -> VolumeSource:
    path = fields.text("path")
    if not path.startswith("/") or ".." in path.split("/"):
        raise fields.refusal("path", f"{shown(path)} must be absolute and hold no '..'")
    return HostPath(path=path, type=fields.choice("type", _HOST_PATH_TYPES, ""))


def _claim(fields: Fields) -> VolumeSource:
    return Claim(claim=fields.text("claimName"), read_only=fields.flag("readOnly"))


def _secret(fields: Fields) -> VolumeSource:
    mode = _default_mode(fields)
    source = _object(fields, "Secret", "secretName")
    return Projected(plugin="secret", sources=(source,), default_mode=mode)


def _config_map(fields: Fields) -> VolumeSource:
    mode = _default_mode(fields)
    return Projected(plugin="configmap", sources=(_object(fields, "ConfigMap", "name"),), default_mode=mode)


def _downward(fields: Fields) -> VolumeSource:
    mode = _default_mode(fields)
    source = FieldProjection(items=tuple(map(_field_item, fields.children("items"))))
    return Projected(plugin="downward-api", sources=(source,), default_mode=mode)


def _projected(fields: Fields) -> VolumeSource:
    mode = _default_mode(fields)
    sources = tuple(map(_projection, fields.children("sources")))
    return Projected(plugin="projected", sources=sources, default_mode=mode)


def _projection(fields: Fields) -> Projection:
    found: Projection
    if (secret := fields.child("secret")) is not None:
        found, part = _object(secret, "Secret", "name"), secret
    elif (config_map := fields.child("configMap")) is not None:
        found, part = _object(config_map, "ConfigMap", "name"), config_map
    elif (downward := fields.child("downwardAPI")) is not None:
        found, part = FieldProjection(items=tuple(map(_field_item, downward.children("items")))), downward
    elif (token := fields.child("serviceAccountToken")) is not None:
        found, part = TokenProjection(path=_file_path(token)), token
        token.ignore("audience", "expirationSeconds")
    else:
        raise PodRefused(f"{fields.where}: no projection that podlet knows")
    part.close()
    fields.close()
    return found


def _object(fields: Fields, kind: str, name_key: str) -> ObjectProjection:
    items = []
    for entry in fields.children("items"):
        items.append(Item(key=entry.text("key"), path=_file_path(entry), mode=_mode(entry)))
        entry.close()
    return ObjectProjection(
        kind=kind, name=fields.text(name_key), items=tuple(items), optional=fields.flag("optional")
    )


def _field_item(entry: Fields) -> Item:
    source = parse_field_source(entry)
    if source is None:
        raise PodRefused(f"{entry.where}: needs fieldRef or resourceFieldRef")
    item = Item(key="", path=_file_path(entry), mode=_mode(entry), source=source)
    entry.close()
    return item


def _file_path(entry: Fields) -> str:
    path = entry.text("path")
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or not all(parts) or parts[0].startswith(".."):
        raise entry.refusal("path", f"{shown(path)} must be a relative path without '..'")
    return path


def _default_mode(fields: Fields) -> int:
    return fields.number("defaultMode", 0o644, 0, _MODE_MAX)


def _mode(entry: Fields) -> int | None:
    return entry.optional_number("mode", 0, _MODE_MAX)


_PARSERS = {
    "emptyDir": _empty_dir,
    "hostPath": _host_path,
    "persistentVolumeClaim": _claim,
    "secret": _secret,
    "configMap": _config_map,
    "downwardAPI": _downward,
    "projected": _projected,
}
