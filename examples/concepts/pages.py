"""Pages of docs/ that are written by hand, with blocks that are made: pictures, tables, a policy's options.

A block stands between `<!-- NAME -->` and `<!-- /NAME -->`.  A test makes them again and compares.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from examples.concepts.scenes import SCENES, Scene
from inflightd.schedulers.options import OptionInfo, describe
from inflightd.schedulers.registry import load

DOCS: Final = Path(__file__).parents[2] / "docs"
PRESETS: Final = DOCS.parent / "examples" / "presets"
POLICIES: Final = ("throughput-max", "latency-guarantee", "conservative-admission", "static-batch")


def files() -> dict[Path, str]:
    """Every file that the command writes, and its text."""
    scenes = {name: draw() for name, draw in SCENES.items()}
    made = {DOCS / "pictures" / f"{name}.svg": scene.svg for name, scene in scenes.items()}
    blocks = {f"scene {name}": _scene(name, scene) for name, scene in scenes.items()}
    made[DOCS / "concepts.md"] = filled((DOCS / "concepts.md").read_text(), blocks)
    blocks = {f"policy {name}": _policy(name) for name in POLICIES} | {"presets": _presets()}
    made[DOCS / "policies.md"] = filled((DOCS / "policies.md").read_text(), blocks)
    return made


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """`page` with the text of each of its blocks.  Raises ValueError if page and blocks do not have the same names."""
    names = re.findall(r"^<!-- ([\w -]+) -->$", page, flags=re.MULTILINE)
    ends = re.findall(r"^<!-- /([\w -]+) -->$", page, flags=re.MULTILINE)
    if names != ends or sorted(names) != sorted(blocks):
        raise ValueError(f"the page has the blocks {names} and the ends {ends}, there are {list(blocks)}")
    for name, text in blocks.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}"
    return page


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first row holds the headings."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _scene(name: str, scene: Scene) -> str:
    picture = f"![{scene.svg.partition('<title>')[2].partition('</title>')[0]}](pictures/{name}.svg)"
    return f"{picture}\n\n`python -m examples.concepts {name}`\n\n{table(scene.table)}"


def _policy(name: str) -> str:
    """What the policy's own docstring says, and its options."""
    policy = load(name)
    summary, _, rest = inspect.cleandoc(policy.__doc__ or "").partition("\n\n")
    said = re.findall(r"^(Idea|Source|Optimises|Starves): (.*?)(?=^(?:Idea|Source|Optimises|Starves): |\Z)",
                      rest, flags=re.MULTILINE | re.DOTALL)  # fmt: skip
    points = [f"- **{heading}:** {' '.join(text.split())}" for heading, text in said]
    rows = [("option", "default", "unit", "what it is"), *map(_option, describe(policy.Options))]
    return "\n".join([" ".join(summary.split()), "", *points, "", table(rows)])


def _presets() -> str:
    """Each file of examples/presets: the first words of its comment, its scheduler, what docs/benchmarks.json says."""
    reports = json.loads((DOCS / "benchmarks.json").read_text())["reports"]
    goals = [goal for report in reports if report["name"] == "presets" for goal in report["goals"]]
    rows = [("preset", "what it is for", "scheduler", "measured")]
    for path in sorted(PRESETS.glob("*.toml")):
        text = path.read_text()
        comment = re.match(r"(?:# .*\n)+", text)
        words = " ".join(line.removeprefix("# ") for line in comment[0].splitlines()) if comment else ""
        config = tomllib.loads(text)
        options = [f"{name}={value}" for name, value in config.get("scheduler_options", {}).items()]
        link = f"[{path.stem}](../examples/presets/{path.name})"
        rows.append((link, words, f"`{' '.join([config['scheduler'], *options])}`", measured(path.name, goals)))
    return table(rows)


def measured(preset: str, goals: Sequence[Mapping[str, Any]]) -> str:
    """What the benchmark's judged figures, named "PRESET: WHAT", say of one preset."""
    begin = f"{preset}: "
    own = [goal for goal in goals if goal["figure"].startswith(begin)]
    said = [f"{goal['figure'].removeprefix(begin)}: {goal['value']:.3g} (goal {goal['goal']})" for goal in own]
    return "; ".join(said) or "not yet"


def _option(option: OptionInfo) -> Sequence[str]:
    default = str(option.default).lower() if option.type == "bool" else str(option.default)
    return f"`{option.name}`", f"`{default}`", option.unit, option.help
