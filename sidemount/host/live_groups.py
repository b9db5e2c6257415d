"""Groups: facts of a kind by what several of them have in common, kept in step with the facts themselves."""

from collections.abc import Mapping
from typing import Any

from sidemount.host.live_kinds import Key, group_of
from sidemount.host.sharded_map import GONE, Gone, ShardedMap, ShardedMapBuilder

Groups = ShardedMap[Key, tuple[Any, ...]]
"""Facts by group, each group sorted by name."""


def add_to_group(groups: "ShardedMapBuilder[Key, tuple[Any, ...]]", fact: Any) -> None:
    """Add a fact of a list that is on its way in."""
    group = group_of(fact)
    if group is not None:
        held = groups.get(group, ())
        groups[group] = tuple(sorted((*held, fact), key=_name)) if held else (fact,)


def changed_groups(groups: Groups, known: Mapping[Key, Any], changes: Mapping[Key, Any]) -> Groups:
    """Return the groups after changes: each fact taken from where it was and put where it is."""
    held: dict[Key, dict[str, Any]] = {}
    for key, change in changes.items():
        both: tuple[tuple[Any, bool], ...] = ((known.get(key), False), (change, True))
        for fact, is_new in both:
            group = group_of(fact)
            if group is None:
                continue
            if group not in held:
                held[group] = {other.name: other for other in groups.get(group, ())}
            if is_new:
                held[group][fact.name] = fact
            else:
                held[group].pop(fact.name, None)
    told: dict[Key, tuple[Any, ...] | Gone] = {
        group: tuple(sorted(found.values(), key=_name)) if found else GONE for group, found in held.items()
    }
    return groups.changed(told) if told else groups


def _name(fact: Any) -> str:
    name: str = fact.name
    return name
