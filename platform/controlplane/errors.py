"""Why a change to what is managed here is not made; every door turns these into its own answer.

Wrong values are Django's ValidationError, which names the field.
"""


class Refused(Exception):
    """The message is one sentence for the person who asked."""

    code = "refused"


class NotVisible(Refused):
    """There is no such thing, or not for this person: both look alike."""

    code = "not_found"


class NotAllowed(Refused):
    """The person sees the thing, but has not the role for this."""

    code = "permission_denied"


class VersionConflict(Refused):
    """Somebody else has changed it since it was read."""

    code = "version_conflict"

    def __init__(self, what: str, current: int) -> None:
        super().__init__(f"{what} was changed meanwhile; read it again and repeat the change.")
        self.current = current
        """Its version now."""
