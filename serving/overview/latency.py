"""Latencies that were recorded beside a bundle, if they are of this bundle."""

from __future__ import annotations

from serving.bundle import Bundle
from serving.errors import BundleError
from serving.latency import LatencyRecord, read_latency
from serving.overview.sections import printable


def recorded_latency(bundle: Bundle) -> tuple[LatencyRecord | None, str]:
    """Returns what was measured of this bundle, or None and why it does not count."""
    try:
        record = read_latency(bundle.path)
    except BundleError as error:
        return None, printable(error.reason)
    if record is not None and record.manifest_sha256 != bundle.fingerprint:
        return None, "latency.json belongs to another export."
    return record, ""
