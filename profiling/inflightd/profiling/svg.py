"""A drawing in SVG, written by hand: rectangles, lines and text, readable on a light and on a dark page.

The colours are those of Okabe and Ito, told apart with every kind of colour blindness; text on them is black.  The
output depends on the input alone, so that a committed picture can be compared with what is drawn now.
"""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape, quoteattr

# Mean widths at 11 px, for labels that must fit somewhere.
DIGIT_PX: Final = 6.6
LETTER_PX: Final = 6.2

_STYLE: Final = """
text { font: 11px ui-sans-serif, system-ui, "DejaVu Sans", sans-serif; fill: #1f2328 }
.page { fill: #ffffff }
.strong { font-weight: bold }
.faint { fill: #59636e }
.in { fill: #000000 }
.middle { text-anchor: middle }
.right { text-anchor: end }
.axis { stroke: #8c959f; stroke-width: 1 }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.sky { fill: #56b4e9 }
.orange { fill: #e69f00 }
.green { fill: #35b88b }
.purple { fill: #cc79a7 }
.yellow { fill: #f0e442 }
.red { fill: #e8703a }
.grey { fill: #c4c9cf }
.hatched { fill: url(#hatch) }
.outline { fill: none; stroke: #8c959f; stroke-width: 1 }
.dashed { fill: none; stroke: #d1495b; stroke-width: 1.5; stroke-dasharray: 3 2 }
.hatched.pale { opacity: 0.35 }
.sky.pale { fill: #cbe7f8 }
.orange.pale { fill: #f7e0b0 }
.green.pale { fill: #bfe6d6 }
.purple.pale { fill: #f0d7e4 }
.yellow.pale { fill: #faf6c0 }
.red.pale { fill: #f8d5c4 }
.grey.pale { fill: #e9ebee }
.hatch { stroke: #30363d; stroke-width: 1.4 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .page { fill: #0d1117 } .faint { fill: #9198a1 } .in { fill: #000000 }
.grid { stroke: #3d444d } .axis { stroke: #9198a1 }
}
"""
_HATCH: Final = (
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="hatch" d="M0 0V6"/></pattern>'
)


class Drawing:
    """Shapes are added in the order in which they lie on each other; coordinates are pixels from the top left."""

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        """title and description: what a screen reader says."""
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_px(width)} {_px(height)}" '
            f'width="{_px(width)}" height="{_px(height)}" role="img">\n'
            f"<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>\n"
            f"<style>{_STYLE}</style>\n<defs>{_HATCH}</defs>"
        )
        self._shapes: list[str] = []
        self.rect(0, 0, width, height, "page")

    def rect(self, x: float, y: float, width: float, height: float, style: str, *, tip: str = "") -> None:
        """style: classes of the sheet above; tip: shown when the pointer rests on it."""
        place = f'x="{_px(x)}" y="{_px(y)}" width="{_px(width)}" height="{_px(height)}"'
        end = f"><title>{escape(tip)}</title></rect>" if tip else "/>"
        self._shapes.append(f'<rect class="{style}" {place}{end}')

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        ends = f'x1="{_px(x1)}" y1="{_px(y1)}" x2="{_px(x2)}" y2="{_px(y2)}"'
        self._shapes.append(f'<line class="{style}" {ends}/>')

    def text(self, x: float, y: float, text: str, style: str = "") -> None:
        """y: of the base line."""
        classes = f" class={quoteattr(style)}" if style else ""
        self._shapes.append(f'<text{classes} x="{_px(x)}" y="{_px(y)}">{escape(text)}</text>')

    def source(self) -> str:
        """The file's text."""
        return "\n".join((self._head, *self._shapes, "</svg>")) + "\n"


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
