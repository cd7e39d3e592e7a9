"""The table of primitives, formats, dtypes and values in docs/coverage.md: written and checked.

A record is what tests compared: tuples of primitive, format, dtype and kind of value. The table
says no more than the record of a run of all tests of the rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

FORMATS = ("saved_model", "onnx")

SHORT = {
    "bool": "bool",
    **{f"bfloat{n}": f"bf{n}" for n in (16,)},
    **{f"float{n}": f"f{n}" for n in (16, 32, 64)},
    **{f"int{n}": f"i{n}" for n in (8, 16, 32, 64)},
    **{f"uint{n}": f"u{n}" for n in (8, 16, 32, 64)},
}
"""Dtype → how jaxprs and the table abbreviate it."""

FLOATS = ("f32", "f64", "f16", "bf16")
EXTREME = {"float": ("huge", "tiny"), "integer": ("lowest", "highest")}
SPECIAL = ("inf", "-inf", "nan", "-0.0")

# Bits, counts and sizes. They have no special values.
INTEGERS_ONLY = frozenset(
    [
        "and", "clz", "dim_as_value", "iota", "not", "or", "population_count", "reduce_and",
        "reduce_or", "reduce_xor", "shift_left", "shift_right_arithmetic", "shift_right_logical",
        "xor",
    ]
)  # fmt: skip

Record = set[tuple[str, str, str, str]]


@dataclasses.dataclass(frozen=True)
class Row:
    """One primitive of the table."""

    primitive: str
    dtypes: dict[str, tuple[str, ...]]
    """Format → dtypes that were compared there."""
    values_of: str
    """The dtype that the kinds are of, empty if nothing was compared."""
    kinds: frozenset[str]
    """Kinds of values that were compared in both formats."""

    @property
    def is_full(self) -> bool:
        """Whether ordinary, extreme and special floats were compared in both formats."""
        wanted = {"ordinary", *EXTREME["float"], *SPECIAL}
        return self.values_of in FLOATS and wanted <= self.kinds

    @property
    def is_full_for_integers(self) -> bool:
        """Whether it has no special values and was compared up to the ends of a range."""
        if self.primitive not in INTEGERS_ONLY:
            return False
        # How many axes there are and where an element is come to no end of a range.
        wanted = {"ordinary"}
        if self.primitive not in ("dim_as_value", "iota"):
            wanted |= set(EXTREME["integer"])
        return wanted <= self.kinds

    def claims(self) -> set[tuple[str, ...]]:
        """Return what the row says, to be looked for among what a run produced."""
        found: set[tuple[str, ...]] = {
            (self.primitive, format, dtype)
            for format, dtypes in self.dtypes.items()
            for dtype in dtypes
        }
        return found | {(self.primitive, self.values_of, "values", kind) for kind in self.kinds}


def rows_of(record: Record, primitives: Iterable[str]) -> list[Row]:
    """Return the rows of all registered primitives, from what was compared."""
    by_primitive: dict[str, dict[tuple[str, str], set[str]]] = {name: {} for name in primitives}
    for primitive, format, dtype, kind in record:
        kinds = by_primitive.setdefault(primitive, {})
        kinds.setdefault((format, SHORT.get(dtype, dtype)), set()).add(kind)
    return [_row(name, by_primitive[name]) for name in sorted(by_primitive)]


def _row(primitive: str, kinds: dict[tuple[str, str], set[str]]) -> Row:
    order = list(SHORT.values())
    dtypes = {
        format: tuple(sorted((d for f, d in kinds if f == format), key=order.index))
        for format in FORMATS
    }
    in_both = {
        dtype: frozenset(set.intersection(*(kinds[format, dtype] for format in FORMATS)))
        for dtype in set.intersection(*(set(dtypes[format]) for format in FORMATS))
    }
    preferred = [*FLOATS, *(dtype for dtype in order if dtype not in FLOATS)]
    if primitive in INTEGERS_ONLY:
        preferred = [dtype for dtype in order if dtype not in FLOATS]
    best = max(
        (dtype for dtype in preferred if dtype in in_both),
        key=lambda dtype: (dtype == "f32", len(in_both[dtype]), -preferred.index(dtype)),
        default="",
    )
    return Row(primitive, dtypes, best, in_both.get(best, frozenset()))


_PAGE = """\
# Which operations are compared with JAX

Written by `make coverage-table` from the tests that ran; a run of all tests fails if a line here
says more than they compared, or if a rule has no line. Made with JAX {jax_version}.

**{full} of {total} primitives** go through the rules to both portable formats and are compared with
JAX on ordinary, extreme and special floats. {integers} more are about bits, counts and sizes, which
have no special values; they are compared up to the ends of their ranges.

A primitive counts as it reaches the rules; what an earlier pass folds away does not. The kinds of
values are those of one dtype, named under "of", in both formats. Ordinary floats lie between the
square roots of the largest and of the smallest number, huge and tiny ones beyond; "sub" are the
subnormal ones. Results agree to within rounding, exactly where nothing is rounded; the sign of a
zero among them is not compared. ONNX Runtime ran as in a control loop, with subnormal numbers
flushed. StableHLO and the flavour `xla` of SavedModel hold what JAX itself lowers, so they take
every primitive.

| primitive | SavedModel | ONNX | of | ordinary | extreme | special |
|---|---|---|---|---|---|---|
{lines}
"""


def render(rows: list[Row], jax_version: str) -> str:
    """Return the page."""
    return _PAGE.format(
        full=sum(row.is_full for row in rows),
        integers=sum(row.is_full_for_integers for row in rows),
        jax_version=jax_version,
        lines="\n".join(_line(row) for row in rows),
        total=len(rows),
    )


def _line(row: Row) -> str:
    saved_model, onnx = (" ".join(row.dtypes[format]) for format in FORMATS)
    extreme = [kind for kinds in EXTREME.values() for kind in kinds if kind in row.kinds]
    special = [kind for kind in SPECIAL if kind in row.kinds]
    special += ["sub"] if "subnormal" in row.kinds else []
    cells = [
        f"`{row.primitive}`",
        saved_model,
        onnx,
        row.values_of,
        "yes" if "ordinary" in row.kinds else "",
        " ".join(extreme),
        "has none" if row.primitive in INTEGERS_ONLY else " ".join(special),
    ]
    return "| " + " | ".join(cells) + " |"


def parse(text: str) -> list[Row]:
    """Read the rows of a page back."""
    rows = []
    for line in text.splitlines():
        if not line.startswith("| `"):
            continue
        name, saved_model, onnx, values_of, ordinary, extreme, special = (
            cell.strip() for cell in line.strip("|").split("|")
        )
        kinds = {*extreme.split(), *(special.split() if special != "has none" else [])}
        kinds |= {"ordinary"} if ordinary else set()
        if "sub" in kinds:
            kinds = kinds - {"sub"} | {"subnormal"}
        dtypes = {"saved_model": tuple(saved_model.split()), "onnx": tuple(onnx.split())}
        rows.append(Row(name.strip("`"), dtypes, values_of, frozenset(kinds)))
    return rows


def faults(text: str, record: Record, primitives: Collection[str]) -> list[str]:
    """Return what is wrong with a page after a run of all tests of the rules.

    Args:
        text: The committed page.
        record: What the run compared.
        primitives: Those with a rule.
    """
    claimed = parse(text)
    produced: set[tuple[str, ...]] = set()
    for primitive, format, dtype, kind in record:
        short = SHORT.get(dtype, dtype)
        produced.add((primitive, format, short))
        if all((primitive, other, dtype, kind) in record for other in FORMATS):
            produced.add((primitive, short, "values", kind))
    found = [
        f"it says {' '.join(claim)}, which no test compared"
        for row in claimed
        for claim in sorted(row.claims() - produced)
    ]
    named = {row.primitive for row in claimed}
    found += [f"it lacks {name}, which has a rule" for name in sorted(set(primitives) - named)]
    found += [f"it has {name}, which has no rule" for name in sorted(named - set(primitives))]
    count = sum(row.is_full for row in claimed)
    if f"**{count} of {len(claimed)} primitives**" not in text:
        found.append(f"its count is not that of its rows, {count} of {len(claimed)}")
    return found
