"""Which idle slots have lived or idled long enough. Slow and the same for both cores."""

from __future__ import annotations

from math import inf
from typing import Any

from ..events import DestroyReason


def expired(core: Any, now: float) -> list[tuple[Any, DestroyReason]]:
    """Idle slots past their lifetime or idle time, with the reason."""
    found: list[tuple[Any, DestroyReason]] = []
    spare = core.count + core.opening - core.min_size
    idle = core.idle_slots()
    for slot in idle:
        if slot.expires_at <= now:
            found.append((slot, DestroyReason.MAX_LIFETIME))
            spare -= 1
    if core.max_idle is not None and spare > 0:
        for slot in sorted(idle, key=lambda slot: slot.idle_since):
            if spare > 0 and slot.idle_since + core.max_idle <= now < slot.expires_at:
                found.append((slot, DestroyReason.MAX_IDLE))
                spare -= 1
    return found


def next_expiry(core: Any) -> float:
    """When `expired` may have something to say again: loop time, or inf."""
    idle = core.idle_slots()
    when: float = min((slot.expires_at for slot in idle), default=inf)
    if core.max_idle is not None and idle and core.count + core.opening > core.min_size:
        when = min(when, min(slot.idle_since for slot in idle) + core.max_idle)
    return when
