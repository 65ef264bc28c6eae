"""The target model: a stock transformers causal LM with an own cache, a tree mask and taps for the draft heads' features."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from talon_bench.cache import KVCache
from talon_bench.drafters.spec import TargetShape
from talon_bench.errors import UsageError
from talon_bench.fused import attend, fuse, rounding
from talon_bench.packed import Linear

ATTENTION = "talon_bench"
"""Name under which transformers finds the attention of `fused.attend`."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **others: object,
) -> tuple[Tensor, None]:
    for name in ("softcap", "s_aux"):
        if others.get(name) is not None:
            raise UsageError(f"attention with {name} found, which talon_bench does not compute; use another target")
    out = attend(query, key, value, attention_mask, scaling)  # [1, n, heads * d]
    return out.view(1, query.shape[2], query.shape[1], query.shape[3]), None


AttentionInterface.register(ATTENTION, _attention)


@dataclass
class Target:
    """A causal LM that decodes one sequence: prefill, verification of a draft tree, commit of the accepted path.

    `model` is any stock transformers decoder whose layers take a prepared 4-d mask and a cache object, checked when it is
    wrapped. Logits come out in float32. All methods of a run share one Target, so they meet the same kernels and cache.
    """

    model: nn.Module
    name: str
    fused: bool = False
    packed: bool = False
    cache: KVCache | None = None
    _states: dict[int, Tensor] = field(default_factory=dict)
    _taps: set[int] = field(default_factory=set)

    @classmethod
    def wrap(cls, model: nn.Module, name: str, *, fuse_layers: bool = False, pack: bool = False) -> Target:
        """Prepare a loaded model (its attention and, on request, its layers are replaced in place).

        fuse_layers, pack: the CPU engine of `fused` and `packed`. A bfloat16 model's output projection is then held in
        float32, so that the logits are true float32 numbers and not roundings to 8 bits.
        """
        model.eval().requires_grad_(False)
        reference = _reference_logits(model)
        model.set_attn_implementation(ATTENTION)
        try:
            fused = fuse_layers and fuse(model, pack=pack)
            target = cls(model, name, fused=fused, packed=fused and pack)
            if fused:
                head = model.get_output_embeddings()
                target._project = Linear(head.weight.float(), head.bias, pack=pack)
            found = target._trial_logits()
        except (AttributeError, RuntimeError, TypeError) as error:
            line = (str(error).splitlines() or [type(error).__name__])[0]
            raise UsageError(_refusal(model, f"a trial pass fails ({line})")) from error
        if not (found - reference).norm() <= rounding(model.dtype) * reference.norm():
            raise UsageError(_refusal(model, "its logits differ from the model's own"))
        return target

    def __post_init__(self) -> None:
        config = self.model.config
        self._decoder = self.model.get_decoder()
        self._project = self.model.get_output_embeddings()
        # transformers renamed the argument between 5.20, the newest for Python 3.10, and 5.24.
        renamed = "cache" in inspect.signature(self._decoder.forward).parameters
        self._cache_keyword = "cache" if renamed else "past_key_values"
        self.device = self._project.weight.device
        self.dtype = self.model.dtype
        self.shape = TargetShape(
            name=self.name,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            num_layers=config.num_hidden_layers,
        )
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._decoder.norm.register_forward_hook(self._keep_final)

    @property
    def window(self) -> int:
        """Longest sequence: the position limit, or a sliding attention window where the model uses one."""
        config = self.model.config
        limits = [config.max_position_embeddings]
        layer_types = getattr(config, "layer_types", None)
        if getattr(config, "sliding_window", None) and (layer_types is None or "sliding_attention" in layer_types):
            limits.append(config.sliding_window)
        return min(limits)

    @property
    def embedding(self) -> Tensor:
        """[vocab, hidden] token embeddings, for draft heads that borrow them."""
        return self.model.get_input_embeddings().weight

    def project(self, hidden: Tensor) -> Tensor:
        """Logits, float32 [..., vocab], of final hidden states [..., hidden]; EAGLE-1/2 heads borrow it."""
        if isinstance(self._project, Linear):
            return self._project(hidden.float())
        return self._project(hidden).float()

    def allocate(self, capacity: int) -> None:
        """Give the cache room for `capacity` tokens; an existing cache that is large enough is emptied and kept."""
        if self.cache is None or self.cache.capacity < capacity:
            self.cache = KVCache(
                layers=self.shape.num_layers,
                kv_heads=self._kv_heads,
                head_dim=self._head_dim,
                capacity=capacity,
                dtype=self.dtype,
                device=self.device,
            )
        self.cache.reset()

    @torch.inference_mode()
    def prefill(self, ids: list[int]) -> Tensor:
        """Fill the (empty) cache with the prompt and commit it; float32 [vocab] logits after its last token."""
        n = len(ids)
        mask = torch.full((n, n), float("-inf"), dtype=self.dtype, device=self.device).triu_(1)
        hidden = self._pass(torch.tensor(ids, device=self.device), torch.arange(n, device=self.device), mask)
        self.cache.commit(list(range(n)))
        return self.project(hidden[-1])

    @torch.inference_mode()
    def verify(self, tokens: Tensor, depths: Tensor, visible: Tensor | None) -> Tensor:
        """One pass over a tree behind the committed sequence; float32 logits [nodes, vocab].

        tokens, depths: [nodes], root first. visible: bool [nodes, nodes], `TokenTree.ancestor_mask`; None for one node.
        """
        length = self.cache.length
        mask = None
        if visible is not None:
            n = tokens.shape[0]
            mask = torch.zeros(n, length + n, dtype=self.dtype, device=self.device)
            mask[:, length:].masked_fill_(~visible, float("-inf"))
        return self.project(self._pass(tokens, depths + length, mask))

    @torch.inference_mode()
    def commit(self, path: list[int]) -> None:
        """Keep the accepted nodes (ascending numbers of the last pass) in the cache."""
        self.cache.commit(path)

    def tap(self, layers: tuple[int, ...]) -> None:
        """Record the states that enter these decoder layers in every pass (the final states always are)."""
        for layer in set(layers) - self._taps:
            if not 0 <= layer < self.shape.num_layers:
                raise UsageError(
                    f"feature layer {layer} found, {self.name} has layers 0 to {self.shape.num_layers - 1}"
                )
            self._decoder.layers[layer].register_forward_pre_hook(self._keeper(layer), with_kwargs=True)
            self._taps.add(layer)

    def features(self, layers: tuple[int, ...], rows: Tensor) -> Tensor:
        """Features of the last pass at `rows` [m]: [m, len(layers) * hidden], low to high; final states for ()."""
        if not layers:
            return self._states[-1][0, rows]
        return torch.cat([self._states[layer][0, rows] for layer in sorted(layers)], dim=-1)

    def _pass(self, tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Hidden states [n, hidden] after the final norm; mask is additive [n, cached + n], None for one token."""
        n = tokens.shape[0]
        self.cache.room_for(n)
        group = self._heads // self._kv_heads
        if mask is None:
            # A prepared mask keeps transformers from building one; one query row sees everything.
            mask = torch.zeros(group, self.cache.length + 1, dtype=self.dtype, device=self.device)
        elif group > 1:
            mask = mask.repeat(group, 1)
        out = self._decoder(
            input_ids=tokens[None],
            position_ids=positions[None],
            attention_mask=mask[None, None],
            use_cache=True,
            **{self._cache_keyword: self.cache},
        )
        return out.last_hidden_state[0]

    def _keep_final(self, _module: nn.Module, _args: tuple, output: Tensor) -> None:
        self._states[-1] = output

    def _keeper(self, layer: int):
        def keep(_module: nn.Module, args: tuple, kwargs: dict) -> None:
            self._states[layer] = args[0] if args else kwargs["hidden_states"]

        return keep

    def _trial_logits(self) -> Tensor:
        """Logits, float32 [3, vocab], of the passes that decoding is made of, to compare with `_reference_logits`."""
        self.allocate(8)
        first = self.prefill([0, 1, 2])[None]
        rest = self.verify(
            torch.tensor([3, 4], device=self.device),
            torch.tensor([0, 1], device=self.device),
            torch.ones(2, 2, dtype=torch.bool, device=self.device).tril(),
        )
        return torch.cat([first, rest])


@torch.inference_mode()
def _reference_logits(model: nn.Module) -> Tensor:
    """Logits, float32 [3, vocab], of the untouched model after tokens 2, 3 and 4 of the sequence 0..4."""
    ids = torch.arange(5, device=model.get_input_embeddings().weight.device)[None]
    return model(input_ids=ids, use_cache=False).logits[0, 2:].float()


def _refusal(model: nn.Module, reason: str) -> str:
    return (
        f"{type(model).__name__} is not a decoder that talon_bench can drive: {reason};"
        " use one whose layers take a 4-d mask and a cache (Llama, Mistral, Qwen2, Qwen3 and their like)"
    )
