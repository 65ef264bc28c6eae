"""How much is measured: the full size, and one that a CPU does in seconds with the same code."""

from __future__ import annotations

from dataclasses import dataclass, replace

from talon_bench.schema import ArchitectureConfig

SMALL = ArchitectureConfig(
    model_type="llama",
    layers=8,
    hidden_size=256,
    intermediate_size=512,
    heads=8,
    kv_heads=2,
    head_dim=32,
    vocab_size=4096,
    tied_embeddings=False,
    window=8192,
)
"""The random model of the checks, at either scale. Its products are wide enough for a GPU's tensor cores."""
SMALL_DRAFT_VOCAB = 1024


@dataclass(frozen=True)
class Scale:
    """Sizes of one scale. Lengths are in tokens."""

    name: str
    datasets: tuple[str, ...]
    """Whose shipped samples are asked for losslessness."""
    asked: int
    """Prompts of each of them."""
    answer: int
    """Cap of their answers."""
    contexts: tuple[int, ...]
    """Committed tokens behind which single passes are timed."""
    repeats: int
    """Times that a pass is timed."""
    prompts: int
    """Random prompts on which all methods take turns."""
    prompt_tokens: int
    new_tokens: int
    """Cap of the answers to them."""

    def architecture(self, configured: ArchitectureConfig) -> ArchitectureConfig:
        """The sizes that random weights are made in: those of the target, or small ones of the same family."""
        if self.name == "full":
            return configured
        small = {"layers": 8, "hidden_size": 64, "intermediate_size": 96, "heads": 4, "kv_heads": 2, "head_dim": 16}
        return replace(configured, **small, vocab_size=512)

    def draft_vocab(self, configured: int | None, vocab_size: int) -> int:
        """Rows of the random EAGLE-3 head's output projection."""
        return min(configured or vocab_size, vocab_size if self.name == "full" else 128)


FULL = Scale(
    "full",
    datasets=("gsm8k", "humaneval", "mt_bench"),
    asked=2,
    answer=64,
    contexts=(512, 2048),
    repeats=40,
    prompts=12,
    prompt_tokens=512,
    new_tokens=48,
)
TINY = Scale(
    "tiny",
    datasets=("gsm8k",),
    asked=1,
    answer=4,
    contexts=(24,),
    repeats=2,
    prompts=2,
    prompt_tokens=24,
    new_tokens=14,
)
