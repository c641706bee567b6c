"""Deadlocks by way of lanes: tasks that hold the places of a lane and wait for that lane.

The core finds the tasks that hold a whole pool and wait for it. Where there are lanes, a part of
the pool is enough: a task that waits for a place is stuck if all that have one are stuck.
"""

from __future__ import annotations

from typing import Any


def find_deadlock(core: Any, claim: Any) -> list[Any]:
    """The leases that can never come back if this claim waits without a deadline; else nothing.

    A claim that waits is looked at with all that could end its wait: a place comes from the claims
    that have one, a resource from any holder. If none of these is free to run, it is a deadlock.
    """
    holders = core.holders()
    if claim.task is None or all(lease.task is not claim.task for lease in holders):
        return []  # it holds nothing, so that it completes no circle
    waiters = list(core.waiters())
    waits = {id(each.task): each for each in waiters if each.deadline is None}
    waits[id(claim.task)] = claim
    stuck: dict[Any, None] = {}  # leases
    todo, seen = [claim], {claim}
    while todo:
        each = todo.pop()
        if each.lane is not None and not each.placed:
            leases = [lease for lease in holders if lease.lane is each.lane]
            others = [one for one in waiters if one.lane is each.lane and one.placed]
            if len(leases) + len(others) != each.lane.used:
                return []  # a hook looks at one, or it was just granted
        else:
            leases, others = holders, []
            if core.opening or core.closing or core.out != core.count or core.room() > 0:
                return []
            if core.ceiling > core.total:
                return []  # it may be raised by itself
        if any(other.deadline is not None for other in others):
            return []
        for lease in leases:
            waiter = waits.get(id(lease.task))
            if not lease.in_block or lease.task is None or waiter is None:
                return []
            stuck[lease] = None
            others.append(waiter)
        fresh = [other for other in others if other not in seen]
        seen.update(fresh)
        todo += fresh
    return list(stuck)
