"""Memory of a job: what stays while it decodes, and what the host needs on the way there.

The parts follow the engine (docs/engine.md): weights, the copies that it makes of them, the cache, the heads, and the
tensors of the largest pass. `tests/test_plan_memory.py` holds the sum against the measured growth of a real run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from talon_bench.plan.devices import GIB
from talon_bench.plan.sizes import DTYPE_BYTES, FEATURES, cache_bytes, target_size
from talon_bench.schema import ArchitectureConfig
from talon_bench.shapes import node_sizes, padded_rows

CUDA_CONTEXT = int(0.9 * GIB)
"""Driver context, kernels and the allocator's slack on each GPU."""
PROGRAM = int(0.55 * GIB)
"""Resident size of Python with its libraries and a tokenizer, without a model."""


@dataclass(frozen=True)
class HeadSize:
    """A draft head: floating-point numbers, and bytes of its files, which stay in host memory during a run."""

    name: str
    kind: str
    parameters: int
    file_bytes: int
    draft_vocab: int


@dataclass(frozen=True)
class Work:
    """The largest sequence and passes of a job. `prompt`, `cap` in tokens; `budget` nodes of the largest tree, root
    included; `width` nodes of the widest layer that a head is fed; `sampled`: temperature above 0."""

    prompt: int
    cap: int
    budget: int
    width: int
    sampled: bool

    @property
    def positions(self) -> int:
        return self.prompt + self.cap + 1 + self.budget


@dataclass(frozen=True)
class Engine:
    """How the target runs. `fused`: the CPU engine with packed weights and a float32 output projection. `static`: passes of
    few shapes, recorded on a GPU. `gpus`: how many its layers are spread over."""

    dtype: str
    fused: bool = False
    static: bool = False
    gpus: int = 1

    @property
    def bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Memory:
    """Bytes on one device while the job decodes (of several GPUs the fullest)."""

    weights: int
    copies: int
    cache: int
    heads: int
    head_cache: int
    activations: int
    logits: int
    program: int

    @property
    def total(self) -> int:
        return sum(vars(self).values())


def on_device(
    architecture: ArchitectureConfig, engine: Engine, heads: list[HeadSize], work: Work, *, cpu: bool
) -> Memory:
    """What stays on the device, plus the tensors of the largest pass."""
    size = target_size(architecture)
    layers = ceil(size.layers / engine.gpus)
    # Spread out, the last GPU holds the output projection and the embedding that heads borrow.
    ends = size.embedding + (size.output or (size.embedding if engine.gpus > 1 else 0))
    head_bytes = sum(head.parameters for head in heads) * engine.bytes
    return Memory(
        weights=(layers * size.layer + ends + size.norm) * engine.bytes,
        copies=_copies(architecture, engine),
        cache=cache_bytes(architecture, _rows(work, engine), engine.bytes) * layers // size.layers,
        heads=head_bytes + (sum(head.file_bytes for head in heads) if cpu else 0),
        head_cache=len(heads) * _head_cache(architecture, work, engine.bytes),
        activations=_activations(architecture, work, engine.bytes, bool(heads)),
        logits=_logits(architecture, work, engine, heads),
        program=PROGRAM if cpu else CUDA_CONTEXT,
    )


def on_host(architecture: ArchitectureConfig, engine: Engine, heads: list[HeadSize]) -> int:
    """Host memory of a GPU run: the program, the target on its way to the GPU, and the heads' files."""
    weights = target_size(architecture).total * engine.bytes
    return PROGRAM + weights + sum(head.file_bytes for head in heads)


def _copies(architecture: ArchitectureConfig, engine: Engine) -> int:
    """What the CPU engine adds: the float32 output projection, and the stock layers, whose many small pieces the C library's
    allocator keeps after they were replaced."""
    if not engine.fused:
        return 0
    projection = 4 * architecture.vocab_size * architecture.hidden_size
    size = target_size(architecture)
    return projection + size.layer * size.layers * engine.bytes


def _rows(work: Work, engine: Engine) -> int:
    """Rows of the cache: on the static engine it grows by doubling, to twice what is needed at most."""
    return padded_rows(2 * work.positions) if engine.static else work.positions


def _head_cache(architecture: ArchitectureConfig, work: Work, dtype_bytes: int) -> int:
    """One layer's keys, values and rotary tables; a head feeds at most `budget` drafted rows behind the sequence."""
    width = 2 * architecture.kv_heads * architecture.head_dim + 2 * architecture.head_dim
    return work.positions * width * dtype_bytes


def _activations(architecture: ArchitectureConfig, work: Work, dtype_bytes: int, with_head: bool) -> int:
    """Tensors of the prefill, the largest pass: masks, a layer's deepest point, and the features kept for a head."""
    n, hidden = work.prompt, architecture.hidden_size
    group = architecture.heads // architecture.kv_heads
    mask = n * n * dtype_bytes * (1 + group)
    layer = n * dtype_bytes * 3 * (hidden + architecture.intermediate_size) + 8 * n * hidden
    kept = (FEATURES + 1) * n * hidden * dtype_bytes
    if not with_head:
        return mask + layer + n * hidden * dtype_bytes
    # The head's own pass over the prompt: features listed and joined, then a layer; its mask is made and widened.
    head = n * dtype_bytes * (2 * FEATURES * hidden + 3 * (hidden + architecture.intermediate_size))
    return kept + max(mask + layer, 3 * n * n * dtype_bytes + head)


def _logits(architecture: ArchitectureConfig, work: Work, engine: Engine, heads: list[HeadSize]) -> int:
    """The larger of a verification's logits and a draft layer's: each as projected and in float32, and two copies of the
    latter for the softmax. Sampling holds one row in float64, a few times over; the static engine keeps the results of
    every size of pass."""
    projected = 0 if engine.fused else engine.bytes
    verified = work.budget * architecture.vocab_size * (projected + 4)
    drafted = max((work.width * head.draft_vocab * (engine.bytes + 12) for head in heads), default=0)
    kept = 4 * architecture.vocab_size * sum(node_sizes(work.budget)) if engine.static else 0
    return max(verified, drafted) + kept + (5 * 8 * architecture.vocab_size if work.sampled else 0)
