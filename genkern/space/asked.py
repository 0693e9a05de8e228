"""Asked: a question of configs that is answered anew only where something differs that it reads of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from genkern.gemm.config import CONFIG_FIELDS, Config
from genkern.gemm.parameter import CORE, PARAMETERS

Answer = TypeVar("Answer")
# That an answer hangs on something that is not known yet.
PENDING: Any = object()
_MISSING = object()
_CORE = {parameter.name for parameter in CORE}


class _Node:
    """Something that is read next, and where its values lead: to a node, or to an answer."""

    __slots__ = ("children", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.children: dict[object, Any] = {}


class _Unknown(BaseException):
    """What is read is not known yet; no Exception, so that whoever asks does not take it for one."""


class _Watched:
    """A config of which some is known, in the place of a Config; `_reads` gets what is read of it, in order.

    What all configs have in common that a question is asked of are attributes of its class (`watching`).
    """

    def __init__(self, known: Mapping[str, Any], reads: list[str]) -> None:
        self._known, self._reads = known, reads

    def __getattr__(self, name: str) -> Any:
        if name not in PARAMETERS.by_name and name not in CONFIG_FIELDS:
            return getattr(self._whole(), name)
        # The first time only: then it is an attribute.
        if name not in self._reads:
            self._reads.append(name)
        if name not in self._known:
            raise _Unknown(name)
        self.__dict__[name] = value = self._known[name]
        return value

    def having(self, **changes: Any) -> _Watched | Config:
        """As Config.having."""
        if not {*changes} <= _CORE:
            return self._whole().having(**changes)
        other = type(self)(self._known, self._reads)
        other.__dict__.update({**self.__dict__, **changes})
        return other

    def _whole(self) -> Config:
        """The config itself, for what is read of all of it: its name, say."""
        return Config(**{field: getattr(self, field) for field in CONFIG_FIELDS})


Watching = type[_Watched]


def watching(same: Mapping[str, Any]) -> Watching:
    """How configs are watched that have all this in common, by parameter ("family" and "others" too)."""
    return type("_Watched", (_Watched,), dict(same))


class Asked(Generic[Answer]):
    """A question, with the answers that it gave, by what it read of configs to give them.

    `recalls`: whether they are kept, which is no use where no two configs are the same to it.
    """

    def __init__(self, question: Callable[[Config], Answer], watched: Watching, *, recalls: bool = True) -> None:
        self._question, self._watched, self._recalls = question, watched, recalls
        self._tree: Any = _MISSING

    def of(self, known: Mapping[str, Any]) -> Answer:
        """The answer for configs of which so much is known, besides what all have in common, or PENDING."""
        node, last = self._tree, None
        while node.__class__ is _Node:
            if node.name not in known:
                return PENDING  # type: ignore[no-any-return]
            last = node
            node = node.children.get(known[node.name], _MISSING)
        return self._found(known, last) if node is _MISSING else node

    def _found(self, known: Mapping[str, Any], last: _Node | None) -> Answer:
        """`last` is the last node on the way to where the answer is missing."""
        reads: list[str] = []
        try:
            answer = self._question(cast(Config, self._watched(known, reads)))
        except _Unknown:
            # What was read last: whoever comes by with it known goes on from there.
            answer = PENDING
        if self._recalls:
            self._keep(reads, known, last, answer)
        return answer

    def _keep(self, reads: Sequence[str], known: Mapping[str, Any], last: _Node | None, answer: Any) -> None:
        """One path more. A question reads the same next where all that it has read is the same."""
        # From its end: each node leads to what comes after it.
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
