"""What messages call the hooks and the resources of a pool."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """What each hook does, as a noun, in place of its name in messages and in the log.

    A wrapper of a pool gives these, so that its users read of a connection where those of the
    pool read of a hook.
    """

    factory: str | None = None
    destructor: str | None = None
    healthcheck: str | None = None
    before_acquire: str | None = None
    before_release: str | None = None
    resource: str = "resource"
    after_closing: str = "Create a new Pool."  # the remedy for one that is closed

    def of(self, hook: str, default: str | None = None) -> str:
        """Return the word for this hook; without one the default, or else its name."""
        word: str | None = getattr(self, hook)
        return word or default or hook


PLAIN = Words()
