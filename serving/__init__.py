"""Makes an exported policy act, with no JAX in the process."""

from serving.bundle import Bundle, read_bundle
from serving.bundle_writer import BundleWriter
from serving.errors import BundleError, ServingError

__all__ = ["Bundle", "BundleError", "BundleWriter", "ServingError", "read_bundle"]
