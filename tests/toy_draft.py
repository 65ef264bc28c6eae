"""A draft head made of a table: any distribution after any path, and a referee of the feeding protocol."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from talon_bench.tree import TokenTree

Path = tuple[int, ...]
"""Target ids drafted after the root."""

ROOT = 1_000_003
GRID = 2.0**-15
"""Log-probabilities are multiples of this: float32 sums up to 512 nats are exact, and ties are ties."""

KINDS = ("flat", "peaked", "tail", "mixed")
TIED_KINDS = ("equal", "levels", "saturated")


def bounded(max_examples: int) -> settings:
    """Settings of a property: the same examples every run."""
    return settings(derandomize=True, deadline=None, max_examples=max_examples)


class ToyDraft:
    """A `Draft` whose distribution after `path` is `language(path)`, float32 [V].

    Draft id d stands for target id `ids[d]`. Calls that break the protocol of `policies.base.Draft` fail.
    """

    def __init__(
        self, language: Callable[[Path], Tensor], ids: list[int], root: int = ROOT, queued: bool = False
    ) -> None:
        self.root = root
        self.queued = queued
        self.passes = 0
        self.layers: list[list[Path]] = []
        """Paths fed, one list per call of `expand`."""
        self._language = language
        self._ids = torch.tensor(ids)

    @property
    def fed(self) -> list[Path]:
        return [path for layer in self.layers for path in layer]

    def root_log_probs(self) -> Tensor:
        assert self.passes == 0, "the root's distribution is asked for once, first"
        self.passes = 1
        return self._language(()).clone()

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        assert self.passes > 0
        assert tokens.dtype == parents.dtype == torch.int64
        assert tokens.ndim == 1
        assert tokens.shape == parents.shape
        assert len(tokens) > 0, "an empty layer was fed"
        fed = self.fed
        above = range(len(fed) - len(self.layers[-1]), len(fed)) if self.layers else [-1]
        paths = []
        for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
            assert parent in above, "a fed node's parent is in the layer fed just before"
            assert token in self._ids
            paths.append((*(fed[parent] if parent >= 0 else ()), token))
        assert len({*paths, *fed}) == len(paths) + len(fed), "a node was fed twice"
        self.layers.append(paths)
        self.passes += 1
        return torch.stack([self._language(path) for path in paths])

    def to_target(self, draft_ids: Tensor) -> Tensor:
        return self._ids[draft_ids]


class Language:
    """Random distributions over `vocab` draft tokens: one per path, the same whenever it is asked for."""

    def __init__(self, kind: str, vocab: int, seed: int) -> None:
        self.vocab = vocab
        self.ids = [3 * draft + 5 for draft in range(vocab)]
        self._kind = kind
        self._seed = seed
        self._known: dict[Path, Tensor] = {}

    def __call__(self, path: Path) -> Tensor:
        if path not in self._known:
            logits = _logits(self._kind, self.vocab, np.random.default_rng([self._seed, *path]))
            exact = np.round((logits - np.logaddexp.reduce(logits)) / GRID) * GRID
            self._known[path] = torch.tensor(exact, dtype=torch.float32)
        return self._known[path]

    def draft(self, queued: bool = False) -> ToyDraft:
        return ToyDraft(self, self.ids, queued=queued)

    def children(self, path: Path) -> list[tuple[Path, float]]:
        """(path, log-probability of its last token) of every child, in draft order."""
        return [((*path, token), log_prob) for token, log_prob in zip(self.ids, self(path).tolist(), strict=True)]


def _logits(kind: str, vocab: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "equal":
        return np.zeros(vocab)
    if kind == "levels":
        return rng.integers(0, 3, vocab).astype(float)
    if kind == "tail":
        return -1.35 * np.log(rng.permutation(vocab) + 1.0) + rng.normal(0, 0.05, vocab)
    logits = rng.normal(0, 0.3 if kind == "flat" else rng.choice([0.5, 2.0, 6.0]), vocab)
    if kind == "saturated":
        logits = np.round(logits)
    if kind in ("peaked", "saturated"):
        # A saturated head's best log-probability is 0 exactly.
        logits[rng.integers(vocab)] += 9.0 if kind == "peaked" else 60.0
    return logits


@st.composite
def languages(draw: st.DrawFn, kinds: tuple[str, ...], largest: int = 200) -> Language:
    vocab = draw(st.integers(3, largest))
    return Language(draw(st.sampled_from(kinds)), vocab, draw(st.integers(0, 2**31)))


def paths_of(tree: TokenTree) -> list[Path]:
    """Drafted tokens from the root to each node; fails unless the columns are one rooted, connected tree."""
    tokens, parents, depths = tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist()
    for column in (tree.tokens, tree.parents, tree.depths):
        assert column.dtype == torch.int64
        assert column.shape == (tree.size,)
    assert (tokens[0], parents[0], depths[0], float(tree.scores[0])) == (ROOT, -1, 0, 0.0)
    paths: list[Path] = [()]
    for node in range(1, tree.size):
        assert 0 <= parents[node] < node
        assert depths[node] == depths[parents[node]] + 1 <= tree.num_layers
        paths.append((*paths[parents[node]], tokens[node]))
    assert len(set(paths)) == len(paths), "a node was drafted twice"
    return paths


def layers_of(tree: TokenTree) -> list[dict[Path, float]]:
    """Drafted nodes by layer, depth 1 first: {path: score}, in node order."""
    layers: list[dict[Path, float]] = [{} for _ in range(int(tree.depths.max()))]
    for path, score in zip(paths_of(tree)[1:], tree.scores.tolist()[1:], strict=True):
        layers[len(path) - 1][path] = score
    return layers


def log_prob_of(language: Language, path: Path) -> float:
    """Log path probability, exact on the grid."""
    return sum(dict(language.children(path[:depth]))[path[: depth + 1]] for depth in range(len(path)))
