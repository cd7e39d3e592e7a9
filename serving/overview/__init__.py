"""What a person wants to know about a bundle, laid out for a terminal or a page, without JAX."""

from serving.overview.facts import key_facts, metadata_facts, provenance, session_notes
from serving.overview.graph_table import graph_table
from serving.overview.sections import Facts, Note, Table, byte_size, duration, printable
from serving.overview.tables import (
    artefact_table,
    carry_table,
    connection_table,
    file_table,
    joint_names,
    joint_table,
    latency_table,
    module_table,
    operation_table,
    packed_table,
    parity_table,
    port_table,
)
from serving.overview.verdict import Verdict, verdict_on

__all__ = [
    "Verdict",
    "verdict_on",
    "Facts",
    "Note",
    "Table",
    "key_facts",
    "session_notes",
    "metadata_facts",
    "provenance",
    "port_table",
    "carry_table",
    "packed_table",
    "joint_names",
    "joint_table",
    "parity_table",
    "latency_table",
    "artefact_table",
    "file_table",
    "operation_table",
    "graph_table",
    "module_table",
    "connection_table",
    "byte_size",
    "duration",
    "printable",
]
