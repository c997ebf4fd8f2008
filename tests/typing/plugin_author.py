"""What a plugin author writes must pass strict type checkers."""

from doorbuster.plugin import (
    Batch,
    Code,
    Context,
    PluginOptions,
    Rejection,
    Verdicts,
    hookimpl,
)

NOT_A_MEMBER = Rejection(Code.BLOCKED, {"reason": "members-only"})


class MembersOnly:
    """Refuse buyers who are not on the list."""

    on_fault = "closed"

    class Options(PluginOptions):
        """Settings under ``[plugins.members]``."""

        members: frozenset[str]
        share: float = 1.0

    def __init__(self, options: Options, context: Context) -> None:
        """Keep the list."""
        self._members = options.members

    @hookimpl
    def filter(self, batch: Batch) -> Verdicts:
        """Answer one verdict per attempt, in order."""
        return [None if a.buyer in self._members else NOT_A_MEMBER for a in batch]


OPTIONS = MembersOnly.Options(members=frozenset({"ann"}))
