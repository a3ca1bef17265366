"""What this package raises.

Every exception is a `GardenError` and also the built-in exception that fits, so both `except GardenError` and `except ValueError` work.
Each can be made again from its arguments, because a DataLoader raises a worker's exception again in the process that trains.
"""


class GardenError(Exception):
    """Something that Model Garden refuses or could not do."""


class RowError(GardenError, ValueError):
    """A row that cannot be used: `row` says which one, `reason` why."""

    def __init__(self, message: str, row: "int | str | None" = None, reason: "str | None" = None):
        super().__init__(message, row, reason)
        self.row = row
        self.reason = message if reason is None else reason

    def __str__(self) -> str:
        return str(self.args[0])


class ConfigError(GardenError, ValueError):
    """A setting that is wrong, or settings that contradict each other."""


class TraceError(GardenError, ValueError):
    """A file or an array that cannot be read as a memory trace."""


class TrainingError(GardenError, RuntimeError):
    """A run that could not begin or go on."""
