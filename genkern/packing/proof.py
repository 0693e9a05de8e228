"""Proofs of a bundle's calls: the M for which each call is proved, and the bundle that remains afterwards.

A measured winner was checked for its own M, with the machine code that was measured. The other kernels that are packed
for it, with masks or lower tiles for an untuned M, have not been launched before. Each call is therefore proved at both
ends of its range of M and at M in between, launched as the dispatcher launches it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from genkern.gemm.problem import MAX_DIMENSION
from genkern.gemm.records import CONFIG_WINS, NOT_CHECKED, Check, Outcome
from genkern.ops.op import get_op
from genkern.packing.m_ranges import last_for
from genkern.packing.rows import without_kernels
from genkern.result.package import PackedCall
from genkern.result.result import Result
from genkern.runtime.bundles.records import Contents
from genkern.runtime.bundles.untuned_m import Relatives
from genkern.runtime.launch.prepared_call import memory_refused

# M between the ends of a call's range that are proved, drawn evenly by magnitude.
_BETWEEN = 2
# Steps that are tried until an M keeps the kernels' assumptions, which are multiples of powers of two up to 16.
_MOST_STEPS = 64

# A call: the index of its winner in the bundle, and its index among the winner's calls.
Place = tuple[int, int]


@dataclass(frozen=True)
class CallProof:
    """The result of a call's proof.

    proved: the M for which it is right.
    is_whole: True if all M that were tried could be checked.
    wrong: what is wrong; "" if nothing is.
    """

    proved: tuple[int, ...]
    is_whole: bool
    wrong: str = ""


def sizes_to_prove(winner: Result, call: PackedCall) -> tuple[int, ...]:
    """Return the M for which a call is proved; empty if the dispatcher would launch it for none.

    These are the first and the last M for which the dispatcher launches it, the winner's own M if the call serves it,
    and up to `_BETWEEN` random M in between.
    """
    step, own = Relatives.of(winner.problem).step, winner.problem.M
    takes_all = winner.batch_invariant

    def fits(m: int, *, exact: bool = False) -> bool:
        known = {"units": winner.known_units, "M": m}
        there = replace(winner.problem, M=m)
        return not (
            memory_refused(call.plan, known, exact=exact or takes_all) or get_op(there.op).refuse(there, winner.arch)
        )

    def near(m: int, towards: int) -> int | None:
        tries = (m + number * towards * step for number in range(_MOST_STEPS))
        return next((each for each in tries if call.serves(each) and fits(each)), None)

    is_own = call.serves(own) and fits(own, exact=True)
    least = near(call.least_m, 1)
    if least is None:
        return (own,) if is_own else ()
    steps = (min(call.most_m, MAX_DIMENSION) - least) // step
    most = near(least + step * last_for(lambda number: fits(least + number * step), max(steps, 0)), -1)
    found = {least, least if most is None else most}
    if is_own:
        found.add(own)
    # A fixed seed, so that every run draws the same M.
    chance = random.Random(f"{winner.problem.name} {call.code} {least} {most}")
    low, high = math.log(min(found)), math.log(max(found))
    for _ in range(_BETWEEN):
        drawn = least + round((math.exp(chance.uniform(low, high)) - least) / step) * step
        if (place := near(drawn, 1)) is not None and place <= max(found):
            found.add(place)
    return tuple(sorted(found))


def has_no_room(check: Check) -> bool:
    """Return True if a check only says that the operands, or the check's own numbers, do not fit on the GPU."""
    return check.method == NOT_CHECKED and check.lost in (Outcome.LAUNCH_FAILED, Outcome.UNCHECKED)


def other_bits(bits: Mapping[tuple[Place, int], str]) -> list[tuple[Place, int]]:
    """Return the calls of one layer, by place and M, whose rows have other bits than the rows of most calls.

    `bits` has the digest of each row from the first one on (genkern.profiling.same_bits.row_bits); calls with fewer
    rows have the first ones.
    """
    longest = max(map(len, bits.values()), default=0)
    whole = sorted({each for each in bits.values() if len(each) == longest})
    votes = {each: sum(each.startswith(other) for other in bits.values()) for each in whole}
    most = max(whole, key=lambda each: votes[each], default="")
    return [key for key, each in bits.items() if not most.startswith(each)]


def with_proofs(contents: Contents, calls: Mapping[Place, CallProof], rows: Mapping[tuple[str, str], bool]) -> Contents:
    """Return the bundle with its proofs, without wrong calls and kernels. `rows` has the result for each row kernel.

    If a winner's call for its own M is wrong, the library's measured call takes its place; without one, the winner is
    left out.
    """
    winners: list[Result] = []
    for place, winner in enumerate(contents.winners):
        proofs = {number: calls.get((place, number)) for number in range(len(winner.calls))}
        own = winner.call_for(winner.problem.M)
        bad = [winner.calls[number] for number, proof in proofs.items() if proof is not None and proof.wrong]
        if bad and winner.choice == CONFIG_WINS and (own is None or own in bad):
            winners += filter(None, [without_kernels(winner)])
            continue
        kept = tuple(_proved(call, proofs[number]) for number, call in enumerate(winner.calls) if call not in bad)
        winners.append(winner.with_calls(kept))
    row_kernels = {key: sha256 for key, sha256 in contents.row_kernels.items() if rows.get(key, True)}
    proved_rows = frozenset(row_kernels) & (contents.proved_rows | {key for key, right in rows.items() if right})
    return trimmed(Contents(tuple(winners), contents.binaries, row_kernels, proved_rows))


def trimmed(contents: Contents) -> Contents:
    """Return the contents without binaries that nothing launches."""
    used = {sha256 for winner in contents.winners for call in winner.calls for sha256 in call.binaries}
    used |= set(contents.row_kernels.values())
    return replace(contents, binaries={name: each for name, each in contents.binaries.items() if name in used})


def _proved(call: PackedCall, proof: CallProof | None) -> PackedCall:
    if proof is None or not proof.proved:
        return call
    if not proof.is_whole:
        return replace(call, proved=proof.proved)
    # The dispatcher would not launch it beyond these M.
    return replace(call, proved=proof.proved, least_m=proof.proved[0], most_m=proof.proved[-1])
