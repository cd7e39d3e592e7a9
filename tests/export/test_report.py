"""The page of a bundle, read as a browser would read it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest

from export import verify_parity
from export.report import render_report, write_report
from export.report.page import _read
from export.report.plots import error_plot
from serving import BundleWriter, read_bundle
from serving.parity_record import Comparison, ParityRecord, PortResult
from serving.structure import Connection, FlowNode, Graph, Module, Population, Structure

HOSTILE = """<script>alert("x")</script>'"&<img src=http://example.invalid/x onerror=alert(1)>"""
VOID = {"meta", "img", "br", "hr", "input", "link"}


class Page(HTMLParser):
    """Elements with their attributes and text; refuses tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.declaration = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_decl(self, decl: str) -> None:
        self.declaration = decl

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, *tags: str) -> str:
        return " ".join(
            part for tag, parts in self.texts.items() if not tags or tag in tags for part in parts
        )


@pytest.fixture(scope="module")
def verified(exported, tmp_path_factory):
    """A copy of a graph's bundle that was compared with its network."""
    case = exported("population_graph")
    path = tmp_path_factory.mktemp("verified") / "policy"
    shutil.copytree(case.bundle.path, path)
    verify_parity(path, case.network, steps=40, batch_sizes=(1, 3))
    return read_bundle(path)


@pytest.fixture(scope="module")
def page(verified):
    return Page((verified.path / "report.html").read_text("utf-8"))


@pytest.fixture(scope="module")
def hostile(exported, tmp_path_factory):
    """A bundle in which everything that a user names is an attempt to break out."""
    source = exported("mlp").bundle
    module = Module(
        path="",
        name=HOSTILE,
        depth=0,
        type=HOSTILE,
        class_path=HOSTILE,
        settings={HOSTILE: HOSTILE},
    )
    wide = "人形ロボット" * 20
    structure = Structure(
        modules=[module],
        graphs=[
            Graph(
                path=HOSTILE,
                populations=[
                    Population(name=HOSTILE, size=3, activation=HOSTILE, input_from=HOSTILE),
                    Population(name=wide, size=2, output_to="x" * 400),
                ],
                connections=[
                    Connection(
                        source=HOSTILE, target=wide, delay_steps=3, transform=HOSTILE, parameters=1
                    )
                ],
            )
        ],
        flow_nodes=[
            FlowNode(role="module", label=HOSTILE, path=HOSTILE, type=HOSTILE),
            FlowNode(role="action", label=HOSTILE, path=HOSTILE),
        ],
        operations={"onnx": {HOSTILE: 3}},
    )
    metadata = {"joint_names": [HOSTILE, "\u202ehip\x1b[2J"], HOSTILE: {"deep": HOSTILE}}
    from serving.manifest import metadata_from

    manifest = msgspec.structs.replace(
        source.manifest, name=HOSTILE, metadata=metadata_from(metadata), git_commit=HOSTILE
    )
    with BundleWriter(tmp_path_factory.mktemp("hostile") / "policy") as writer:
        for artefact in manifest.artefacts.values():
            top = artefact.entry.split("/")[0]
            shutil.copytree(source.path / top, writer.path / top)
        return writer.commit(manifest, source.initial_carry, source.golden, structure)


def loads_of(page: Page) -> list[str]:
    """Everything that a browser would fetch."""
    found = []
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "xlink:href", "action", "poster", "data"):
            if name in attributes and not attributes[name].startswith("#"):
                found.append(f"{tag} {name}={attributes[name]}")
    return found + re.findall(r"url\((?!#)[^)]*\)|@import", page.text("style"))


def test_the_page_says_whose_it_is_and_in_which_language(page):
    assert page.declaration == "doctype html"
    assert page.all("html") == [{"lang": "en"}]
    assert page.texts["title"][0] == "population_graph: policy report"
    metas = {m.get("name", m.get("http-equiv", "charset")): m for m in page.all("meta")}
    assert metas["viewport"]["content"] == "width=device-width, initial-scale=1"
    assert metas["color-scheme"]["content"] == "light dark"
    assert len(page.all("h1")) == 1


def test_headings_leave_out_no_level(page):
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))


def test_every_table_has_a_caption_and_headers_with_a_scope(page):
    assert len(page.all("caption")) == len(page.all("table")) > 5
    assert all(header["scope"] in ("col", "row") for header in page.all("th"))


def test_every_drawing_and_plot_has_a_name(page):
    named = [svg for svg in page.all("svg") if svg.get("class") in ("plot", "graph")]
    assert len(named) >= 2 + 1 + 4 + 4
    assert all(len(svg["aria-label"]) > 10 for svg in named)


def test_links_lead_to_sections_and_ids_are_unique(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    targets = [link["href"].removeprefix("#") for link in page.all("a")]
    assert len(targets) == 9 and set(targets) <= set(ids)


def test_nothing_is_loaded_and_only_our_script_may_run(page):
    assert loads_of(page) == []
    (policy,) = [m["content"] for m in page.all("meta") if "http-equiv" in m]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    (script,) = page.texts["script"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy


def test_the_verdict_comes_first_with_the_worst_error_and_its_place(page, verified):
    words = " ".join(page.text("p", "span").split())
    parity = json.loads((verified.path / "parity.json").read_text())
    assert parity["passed"] is True
    assert "Parity passed" in words
    assert re.search(r"Worst error \d\.\de-\d\d in \S+ of \w+, bound [12]\.0e-0[56]", words)
    assert "Compared over 40 steps with resets at batch 1, 3, generated observations" in words


def test_ports_carry_artefacts_and_hashes_are_on_the_page(page, verified):
    manifest = verified.manifest
    cells = page.text("td", "th")
    for port in [*manifest.observation_ports, *manifest.carry_ports, *manifest.action_ports]:
        assert port.name in cells
    for port in manifest.carry_ports:
        assert port.next_name in cells
    assert "3 delay buffers, packed" in cells
    assert "carry.1.action.1.populations.inter.buffer" in cells
    for artefact in manifest.artefacts.values():
        assert artefact.files[0].sha256 in cells
    assert verified.fingerprint in page.text("dd")


def test_the_graph_is_drawn_with_its_populations_connections_and_delays(page):
    drawn = [a.get("class", "") for tag, a in page.elements if tag == "g"]
    assert sum("population" in names for names in drawn) == 4
    # Two ports of the graph, and observation and action of the data flow.
    assert sum("node port" in names for names in drawn) == 4
    edges = [a["class"] for a in page.all("path") if a.get("class", "").startswith("edge d")]
    delays = [name.split()[1] for name in edges if " n" in name]
    assert [delays.count(f"d{k}") for k in range(4)] == [2 + 2 + 4, 2 + 1, 1, 2]
    assert "inter: 16 units, tanh, past of 3 steps kept; 3 connections in, 3 out" in page.text(
        "title"
    )


def test_a_module_that_is_not_exported_is_marked(page):
    assert "not in the exported step" in page.text("span")


def test_latencies_are_a_histogram_with_units(page):
    bars = [a for a in page.all("rect") if a.get("class") == "bar"]
    assert len(bars) >= 8
    steps = re.findall(r"to [\d.]+ (?:µs|ms|s): ([\d,]+) steps", page.text("title"))
    assert len(steps) == len(bars)
    # One histogram for each of four artefacts, 40 steps each.
    assert sum(int(n.replace(",", "")) for n in steps) == 160


def test_an_export_says_that_it_is_not_verified_yet(exported, tmp_path):
    case = exported("mlp")
    shutil.copytree(case.bundle.path, tmp_path / "policy")
    (tmp_path / "policy" / "parity.json").unlink(missing_ok=True)
    bundle = read_bundle(tmp_path / "policy")
    target = write_report(bundle, tmp_path / "elsewhere.html")
    assert target == tmp_path / "elsewhere.html"
    assert "Not verified yet" in Page(target.read_text("utf-8")).text("p")


def test_a_proof_of_another_export_is_not_believed(verified, exported, tmp_path):
    other = exported("mlp").bundle
    shutil.copytree(other.path, tmp_path / "policy")
    shutil.copy(verified.path / "parity.json", tmp_path / "policy" / "parity.json")
    words = Page(render_report(read_bundle(tmp_path / "policy"))).text("p")
    assert "parity.json belongs to another export" in words
    assert "Parity passed" not in words


@pytest.mark.parametrize("content", [b"{}", b"not json", b"[1]", b"\xff\xfe"])
def test_a_damaged_proof_is_named_and_the_page_still_made(verified, tmp_path, content):
    shutil.copytree(verified.path, tmp_path / "policy")
    (tmp_path / "policy" / "parity.json").write_bytes(content)
    (tmp_path / "policy" / "latency.json").write_bytes(content)
    words = Page(render_report(read_bundle(tmp_path / "policy"))).text("p")
    assert "parity.json is damaged" in words
    assert "no record of latencies" in words


def test_a_failed_comparison_is_the_first_thing_said(verified, tmp_path):
    shutil.copytree(verified.path, tmp_path / "policy")
    file = tmp_path / "policy" / "parity.json"
    record = json.loads(file.read_text())
    record["comparisons"][0]["ports"][0] |= {"violations": 12, "max_abs_error": "inf"}
    file.write_text(json.dumps(record))
    page = Page(render_report(read_bundle(tmp_path / "policy")))
    words = page.text("p")
    assert "Parity FAILED: stablehlo acts otherwise than the network" in words
    assert "12 elements of action in stablehlo outside the bound" in words
    assert "FAIL, 12 elements" in page.text("td")


def test_an_infinite_error_is_drawn_at_the_top():
    port = PortResult("action", math.inf, 0.0, 0, 1, 0, 0, 1)
    errors = [1e-7, math.inf, 1e-4]
    comparison = Comparison("onnx", "free_running", 1, 1e-5, [port], 1.0, 1.0, errors)
    record = ParityRecord(3, "policy", 3, 0, "generated", [comparison])
    drawn = re.search(r'points="([^"]+)"', str(error_plot(record, "onnx")))
    assert drawn is not None
    _, first, _, infinite, _, last = (float(number) for number in re.split("[ ,]", drawn[1]))
    assert 0 < infinite < last < first


def test_names_that_attack_the_page_are_text(hostile):
    text = render_report(hostile)
    page = Page(text)
    assert len(page.all("script")) == 1
    assert page.all("img") == [] and loads_of(page) == []
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]
    assert HOSTILE in page.text("h1")
    assert HOSTILE in page.text("dd") and HOSTILE in page.text("th", "td")
    assert HOSTILE in page.text("span")
    # What would turn the text around or clear a terminal is shown as its escape.
    assert "\u202e" not in text and "\x1b" not in text
    assert r"\u202ehip\x1b[2J" in page.text("td")


def test_long_names_are_shortened_in_the_drawing_and_whole_beside_it(hostile):
    page = Page(render_report(hostile))
    drawn = [part for part in page.texts["text"] if "…" in part]
    assert drawn and all(len(part) < 40 for part in drawn)
    assert "x" * 400 in page.text("title")


def test_the_page_needs_nothing_but_the_bundle(verified, tmp_path):
    """Also not the structure, which bundles of other writers lack."""
    from dataclasses import replace

    page = Page(render_report(replace(verified, structure=None)))
    assert "modules" not in [a.get("id") for a in page.all("section")]
    assert "Not recorded whether the step normalizes" in page.text("dd")


def colours(scheme: str) -> dict[str, tuple[float, ...]]:
    style = _read("report.css")
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    if scheme == "dark":
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark))
    return {
        name: tuple(int(code[n : n + 2], 16) / 255 for n in (1, 3, 5))
        for name, code in found.items()
    }


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Contrast ratio of the Web Content Accessibility Guidelines 2.2."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_in_both_schemes(scheme):
    found = colours(scheme)
    grounds = {"card": ("ink", "quiet", "accent", "good", "bad", "d0", "d1", "d2", "d3", "d4")}
    grounds |= {"page": ("ink", "quiet"), "soft": ("ink", "quiet")}
    grounds |= {"good-back": ("good", "ink"), "bad-back": ("bad", "ink")}
    grounds |= {"warn-back": ("warn", "ink")}
    weak = {
        f"{text} on {ground}": round(contrast(found[text], found[ground]), 2)
        for ground, texts in grounds.items()
        for text in texts
        if contrast(found[text], found[ground]) < 4.5
    }
    assert weak == {}


def test_the_templates_are_part_of_the_package():
    folder = Path(__file__).parents[2] / "export" / "report" / "templates"
    assert {file.name for file in folder.iterdir()} == {
        "report.html.jinja",
        "report.css",
        "report.js",
    }
