"""Errors of training."""


class CheckpointError(Exception):
    """A checkpoint cannot be written or read; the message names the file and the reason."""


class FactoryRecordError(ValueError):
    """A factory function cannot be recorded, or no longer builds what was recorded."""
