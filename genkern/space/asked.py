"""`Asked`: a cached function of configs, evaluated again only for configs that differ in a parameter that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from genkern.gemm.config import CONFIG_FIELDS, Config
from genkern.gemm.parameter import CORE, PARAMETERS

Answer = TypeVar("Answer")
# The answer if it depends on a parameter whose value is not known yet.
PENDING: Any = object()
_MISSING = object()
_CORE = {parameter.name for parameter in CORE}


class _Node:
    """The parameter that the function reads next, and for each of its values the next node or the answer."""

    __slots__ = ("children", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.children: dict[object, Any] = {}


class _Unknown(BaseException):
    """The function has read a parameter that is not known. Not an Exception, so that functions do not catch it."""


class _Watched:
    """Stands in for a Config of which some parameters are known. `_reads` lists the parameters that are read, in order.

    Parameters that are equal for all configs are attributes of its class (`watching`). Reads of them are not listed.
    """

    def __init__(self, known: Mapping[str, Any], reads: list[str]) -> None:
        self._known, self._reads = known, reads

    def __getattr__(self, name: str) -> Any:
        if name not in PARAMETERS.by_name and name not in CONFIG_FIELDS:
            return getattr(self._whole(), name)
        # Python calls this only for the first read of a name. Then the value is an attribute.
        if name not in self._reads:
            self._reads.append(name)
        if name not in self._known:
            raise _Unknown(name)
        self.__dict__[name] = value = self._known[name]
        return value

    def having(self, **changes: Any) -> _Watched | Config:
        """Like `Config.having`."""
        if not {*changes} <= _CORE:
            return self._whole().having(**changes)
        other = type(self)(self._known, self._reads)
        other.__dict__.update({**self.__dict__, **changes})
        return other

    def _whole(self) -> Config:
        """Return the config itself, for attributes that depend on all parameters, such as its name."""
        return Config(**{field: getattr(self, field) for field in CONFIG_FIELDS})


Watching = type[_Watched]


def watching(same: Mapping[str, Any]) -> Watching:
    """Return a class for configs that share these values, by parameter name ("family" and "others" included)."""
    return type("_Watched", (_Watched,), dict(same))


class Asked(Generic[Answer]):
    """A function of configs, with a cache of its answers by the values of the parameters that it has read.

    `recalls`: False to keep no answers, which saves time if no two calls would share one.
    """

    def __init__(self, question: Callable[[Config], Answer], watched: Watching, *, recalls: bool = True) -> None:
        self._question, self._watched, self._recalls = question, watched, recalls
        self._tree: Any = _MISSING

    def of(self, known: Mapping[str, Any]) -> Answer:
        """Return the predicate's result for configs that have the values `known` in addition to the shared values.

        Return PENDING if the result depends on a parameter whose value is not known.
        """
        node, last = self._tree, None
        while node.__class__ is _Node:
            if node.name not in known:
                return PENDING  # type: ignore[no-any-return]
            last = node
            node = node.children.get(known[node.name], _MISSING)
        return self._found(known, last) if node is _MISSING else node

    def _found(self, known: Mapping[str, Any], last: _Node | None) -> Answer:
        """Evaluate the function, and cache its answer (`recalls`). `last` is the last known node on the path to it."""
        reads: list[str] = []
        try:
            answer = self._question(cast(Config, self._watched(known, reads)))
        except _Unknown:
            # The path ends at the unknown parameter. A later call that knows its value continues from there.
            answer = PENDING
        if self._recalls:
            self._keep(reads, known, last, answer)
        return answer

    def _keep(self, reads: Sequence[str], known: Mapping[str, Any], last: _Node | None, answer: Any) -> None:
        """Add a path to the tree. A function that has read equal values so far reads the same parameter next."""
        # Built from its end, since each node refers to the node after it.
        begun = 0 if last is None else reads.index(last.name) + 1
        below = answer
        for name in reversed(reads[begun:]):
            node = _Node(name)
            if name in known:
                node.children[known[name]] = below
            below = node
        if last is None:
            self._tree = below
        else:
            last.children[known[last.name]] = below
