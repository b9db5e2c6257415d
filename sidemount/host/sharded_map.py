"""ShardedMap: a mapping that never changes, of which a changed copy costs little however large it is."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_SHARDS = 1024
_MASK = _SHARDS - 1


class Gone(Enum):
    """Stands in a change for a key that is to be left out."""

    GONE = "gone"


GONE = Gone.GONE


class ShardedMap(Mapping[K, V], Generic[K, V]):
    """An immutable mapping in parts by hash: a copy with one change shares all parts but one."""

    __slots__ = ("_shards", "_size")

    def __init__(self) -> None:
        self._shards: tuple[dict[K, V], ...] = _EMPTY
        self._size = 0

    @classmethod
    def of(cls, entries: Mapping[K, V]) -> "ShardedMap[K, V]":
        """Return a map of these entries."""
        shards: list[dict[K, V]] = [{} for _ in range(_SHARDS)]
        for key, value in entries.items():
            shards[hash(key) & _MASK][key] = value
        return _made(tuple(shards), len(entries))

    def changed(self, changes: Mapping[K, V | Gone]) -> "ShardedMap[K, V]":
        """Return a copy in which each key has its new value, or is left out."""
        if not changes:
            return self
        shards = list(self._shards)
        own: set[int] = set()
        size = self._size
        for key, value in changes.items():
            index = hash(key) & _MASK
            if index not in own:
                shards[index] = dict(shards[index])
                own.add(index)
            shard = shards[index]
            size -= len(shard)
            if isinstance(value, Gone):
                shard.pop(key, None)
            else:
                shard[key] = value
            size += len(shard)
        return _made(tuple(shards), size)

    def __getitem__(self, key: K) -> V:
        return self._shards[hash(key) & _MASK][key]

    def get(self, key: K, default: Any = None) -> Any:
        """Return the key's value, or the default."""
        return self._shards[hash(key) & _MASK].get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._shards[hash(key) & _MASK]

    def __iter__(self) -> Iterator[K]:
        for shard in self._shards:
            yield from shard

    def __len__(self) -> int:
        return self._size


class ShardedMapBuilder(Generic[K, V]):
    """Entries on their way into a map: to have it made takes no longer for many of them."""

    def __init__(self) -> None:
        self._shards: list[dict[K, V]] = [{} for _ in range(_SHARDS)]

    def get(self, key: K, default: Any = None) -> Any:
        """Return the key's value, or the default."""
        return self._shards[hash(key) & _MASK].get(key, default)

    def __setitem__(self, key: K, value: V) -> None:
        self._shards[hash(key) & _MASK][key] = value

    def __contains__(self, key: K) -> bool:
        return key in self._shards[hash(key) & _MASK]

    def build(self) -> ShardedMap[K, V]:
        """Return the map. Nothing may be added any more."""
        return _made(tuple(self._shards), sum(map(len, self._shards)))


_EMPTY: tuple[dict[Any, Any], ...] = ({},) * _SHARDS


def _made(shards: tuple[dict[K, V], ...], size: int) -> ShardedMap[K, V]:
    made: ShardedMap[K, V] = ShardedMap()
    made._shards = shards
    made._size = size
    return made
