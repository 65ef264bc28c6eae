"""A figure with its caption and file name."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from talon_bench.report.figures.style import STYLE


@dataclass(frozen=True)
class Plot:
    """A figure, its caption and the stem of its files."""

    stem: str
    figure: Figure
    caption: str

    def _ipython_display_(self) -> None:
        """How a notebook shows it: the figure, then the caption."""
        from IPython.display import Image, Markdown, display

        display(Image(self.png(dpi=150), width=int(110 * self.figure.get_figwidth())), Markdown(self.caption))

    def png(self, dpi: int = STYLE["savefig.dpi"]) -> bytes:
        """The figure as PNG bytes."""
        buffer = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            self.figure.savefig(buffer, format="png", dpi=dpi)
        return buffer.getvalue()

    def save(self, folder: Path) -> list[Path]:
        """Writes stem.png, stem.pdf and the caption as stem.txt; undated, so equal data give equal files."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.stem}.{kind}" for kind in ("png", "pdf", "txt")]
        paths[0].write_bytes(self.png())
        with matplotlib.rc_context(STYLE):
            self.figure.savefig(paths[1], metadata={"CreationDate": None})
        paths[2].write_text(self.caption + "\n", encoding="utf-8")
        return paths
