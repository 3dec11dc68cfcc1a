"""What docs/ shows of one run; benchmarks.html is tables and pictures in a single file that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined

from benchmarks import document, plots

_TEMPLATE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>inflightd benchmarks</title>
<style>
body { font: 15px/1.45 ui-sans-serif, system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: #1f2328; background: #fff }
table { border-collapse: collapse; margin: 0.8rem 0 }
th, td { text-align: left; padding: 0.15rem 0.8rem 0.15rem 0; border-bottom: 1px solid #d9d9d9; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.no { color: #b00020; font-weight: bold }
code { background: #f3f4f6; padding: 0.1rem 0.25rem }
figure { margin: 1rem 0 }
figure svg { max-width: 100%; height: auto }
</style>
</head>
<body>
<h1>inflightd benchmarks</h1>
<p>Written by <code>{{ run.command }}</code> on {{ run.date }}. A goal is judged on the median; the spread is the
smallest and the largest round.</p>
<p><b>{{ goals | selectattr("met") | list | length }} of {{ goals | length }} goals met.</b></p>
<table>{% for key, value in run.machine.items() %}<tr><th>{{ key }}</th><td>{{ value }}</td></tr>{% endfor %}</table>
{% for report in run.reports %}
<h2 id="{{ report.name }}">{{ report.name }}</h2>
<p><code>python -m benchmarks.{{ report.name }}{{ " --quick" if report.quick }}</code>,
{{ "%.0f" | format(report.seconds) }} s, {{ report.date }}.</p>
<ul>{% for key, value in report.setting.items() %}<li>{{ key }}: {{ value }}</li>{% endfor %}</ul>
{% if report.goals %}
<table><tr><th>goal</th><th>bound</th><th>measured</th><th>met</th></tr>
{% for goal in report.goals %}
<tr><td>{{ goal.figure }}</td><td>{{ goal.goal }}</td><td class="n">{{ goal.value | number }}</td>
<td>{% if goal.met %}yes{% else %}<span class="no">no</span>{% endif %}</td></tr>
{% endfor %}
</table>
{% endif %}
{% for chart in report.charts %}
<figure aria-label="{{ chart.title }}">{{ pictures[chart.name] | safe }}</figure>
{% endfor %}
<details><summary>all figures</summary>
<table><tr><th>figure</th><th>unit</th><th>median</th><th>min</th><th>max</th><th>rounds</th></tr>
{% for name, figure in report.figures.items() %}
<tr><td>{{ name }}</td><td>{{ figure.unit }}</td><td class="n">{{ figure.median | number }}</td>
<td class="n">{{ figure.min | number }}</td><td class="n">{{ figure.max | number }}</td>
<td class="n">{{ figure["values"] | length }}</td></tr>
{% endfor %}
</table>
</details>
{% endfor %}
</body>
</html>
"""


def publish(run: Mapping[str, Any], folder: Path) -> None:
    """Write benchmarks.json, .md and .html and the pictures in plots/."""
    folder.joinpath("benchmarks.json").write_text(json.dumps(run, indent=1) + "\n")
    folder.joinpath("benchmarks.md").write_text(document.render(run))
    pictures = folder / "plots"
    plots.draw((chart for report in run["reports"] for chart in report["charts"]), pictures)
    folder.joinpath("benchmarks.html").write_text(render(run, pictures))


def render(run: Mapping[str, Any], pictures_folder: Path) -> str:
    """The page for one run, as in benchmarks.json; the folder holds the SVG files of its charts."""
    charts = [chart for report in run["reports"] for chart in report["charts"]]
    pictures = {
        chart["name"]: _inline(pictures_folder.joinpath(f"{chart['name']}.svg").read_text()) for chart in charts
    }
    goals = [goal for report in run["reports"] for goal in report["goals"]]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = document.number
    return environment.from_string(_TEMPLATE).render(run=run, goals=goals, pictures=pictures) + "\n"


def _inline(svg: str) -> str:
    """The picture as it may stand inside a page: without the XML head."""
    return re.sub(r"^.*?(?=<svg)", "", svg, count=1, flags=re.DOTALL)
