"""What an unfinished volume or snapshot is to be, written beside it before anything else is: how it is gone on with. Pure but for reading."""

import json
from dataclasses import replace

from csi.provision_plan import VolumePlan
from csi.volume_files import read_text
from csi.volume_ids import is_id
from csi.volume_state import Kind, decode_volume, encode_volume
from sidemount.model.errors import BadMessage, VolumeError

INTENT = "intent.json"
GONE = "gone"


def unfinished_name(kind: Kind, id_: str) -> str:
    """Return the name under which something is made."""
    return f"{kind.value}-{id_}"


def unfinished_kind(name: str) -> tuple[Kind, str] | None:
    """Return what is made under a name, None if nothing of ours is."""
    for kind in Kind:
        id_ = name.removeprefix(f"{kind.value}-")
        if id_ != name and is_id(id_):
            return kind, id_
    return None


def read_intent(directory: str) -> str:
    """Return the intent, "" if there is none that can be read."""
    try:
        return read_text(f"{directory}/{INTENT}") or ""
    except VolumeError:
        return ""


def encode_plan(plan: VolumePlan) -> str:
    """Render a plan as JSON; equal plans are equal texts."""
    return json.dumps(
        {
            "state": encode_volume(replace(plan.state(0), parameters=dict(sorted(plan.parameters.items())))),
            "subPath": plan.sub_path,
            "mode": plan.mode,
            "sourcePool": plan.source_pool,
        }
    )


def decode_plan(text: str, pool: str) -> VolumePlan | None:
    """Parse what `encode_plan` wrote, None if it is something else."""
    try:
        raw = json.loads(text)
        state = decode_volume(raw["state"], pool)
        return VolumePlan(
            id=state.id,
            name=state.name,
            pool=pool,
            capacity_bytes=state.capacity_bytes,
            limit_bytes=state.limit_bytes,
            parameters=state.parameters,
            context=state.context,
            sub_path=str(raw["subPath"]),
            mode=int(raw["mode"]),
            content=state.content,
            source_pool=str(raw["sourcePool"]),
        )
    except (BadMessage, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
