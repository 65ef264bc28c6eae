"""The target model: a stock transformers causal LM with an own cache, a tree mask and taps for the draft heads' features."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from talon_bench.cache import KVCache, StaticCache, Window
from talon_bench.captured import Captured
from talon_bench.drafters.spec import TargetShape
from talon_bench.errors import UsageError
from talon_bench.fused import attend, fuse, rounding
from talon_bench.packed import Linear
from talon_bench.shapes import PADDING, node_sizes, padded_nodes, padded_rows, windows
from talon_bench.sharding import layer_devices

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
    static: bool = False
    """Whether verification passes have few shapes and, on a GPU, are replayed from recordings."""
    weight_bytes: int = 0
    """Weights that every pass reads."""
    cache: KVCache | None = None
    _states: dict[int, Tensor] = field(default_factory=dict)
    _taps: set[int] = field(default_factory=set)

    @classmethod
    def wrap(
        cls, model: nn.Module, name: str, *, fuse_layers: bool = False, pack: bool = False, static: bool = False
    ) -> Target:
        """Prepare a loaded model (its attention and, on request, its layers are replaced in place).

        fuse_layers, pack: the CPU engine of `fused` and `packed`. A bfloat16 model's output projection is then held in
        float32, so that the logits are true float32 numbers and not roundings to 8 bits.
        static: verification in few shapes, see `captured`; a model that `why_eager` names a reason for must do without.
        """
        model.eval().requires_grad_(False)
        reference = _reference_logits(model)
        weight_bytes = _pass_bytes(model)
        model.set_attn_implementation(ATTENTION)
        try:
            fused = fuse_layers and fuse(model, pack=pack)
            target = cls(model, name, fused=fused, packed=fused and pack, static=static, weight_bytes=weight_bytes)
            if fused:
                head = model.get_output_embeddings()
                target._project = Linear(head.weight.float(), head.bias, pack=pack)
                target.weight_bytes += head.weight.numel() * (4 - head.weight.element_size())
            found = target._trial_logits()
        except (AttributeError, RuntimeError, TypeError) as error:
            line = (str(error).splitlines() or [type(error).__name__])[0]
            engine = " on the static engine, launch.engine=eager may do" if static else ""
            raise UsageError(_refusal(model, f"a trial pass fails{engine} ({line})")) from error
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
        self._devices = layer_devices(self._decoder, self.device)
        self._sharded = {self.device, *self._devices} != {self.device}
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._decoder.norm.register_forward_hook(self._keep_final)
        self._passes = Captured(self._padded_pass, self.device)
        self._alone = torch.ones(1, 1, dtype=torch.bool, device=self.device)

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
        """[vocab, hidden] token embeddings on the target's device, for draft heads that borrow them."""
        return self.model.get_input_embeddings().weight.to(self.device)

    @property
    def row_bytes(self) -> int:
        """Keys and values of one committed token, which every pass reads."""
        return 2 * self.shape.num_layers * self._kv_heads * self._head_dim * self.dtype.itemsize

    @property
    def shapes(self) -> int:
        """Shapes of passes that the static engine has met; 0 on the eager one."""
        return self._passes.shapes

    def project(self, hidden: Tensor) -> Tensor:
        """Logits, float32 [..., vocab], of final hidden states [..., hidden]; EAGLE-1/2 heads borrow it."""
        if isinstance(self._project, Linear):
            return self._project(hidden.float())
        return self._project(hidden).float()

    @torch.inference_mode()
    def allocate(self, capacity: int) -> None:
        """Give the cache room for `capacity` tokens; an existing cache that is large enough is emptied and kept."""
        if self.cache is None or self.cache.capacity < capacity:
            self.cache = self._new_cache(capacity)
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
    def verify(self, tokens: Tensor, depths: Tensor, visible: Tensor | None, eager: bool = False) -> Tensor:
        """One pass over a tree behind the committed sequence; float32 logits [nodes, vocab], valid until the next pass.

        tokens, depths: [nodes], root first. visible: bool [nodes, nodes], `TokenTree.ancestor_mask`; None for one node.
        eager: launch every kernel of the pass by itself, whatever the engine.
        """
        if self.static and not eager:
            return self._replay(tokens, depths, visible)
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

    @torch.inference_mode()
    def prepare(self, nodes: int, tokens: int) -> None:
        """Static engine: record all passes over up to `nodes` nodes that the next `tokens` committed tokens can need."""
        if not self.static:
            return
        for size in node_sizes(nodes):
            least = self.cache.length + size
            inputs = torch.zeros(size, dtype=torch.int64, device=self.device)
            alone = torch.eye(size, dtype=torch.bool, device=self.device)
            for window in windows(least, min(least + tokens, self.cache.rows)):
                self._passes.prepare(inputs, inputs, alone, window=window)

    def tap(self, layers: tuple[int, ...]) -> None:
        """Record the states that enter these decoder layers in every pass (the final states always are)."""
        for layer in set(layers) - self._taps:
            if not 0 <= layer < self.shape.num_layers:
                raise UsageError(
                    f"feature layer {layer} found, {self.name} has layers 0 to {self.shape.num_layers - 1}"
                )
            self._decoder.layers[layer].register_forward_pre_hook(self._keeper(layer), with_kwargs=True)
            self._taps.add(layer)
            self._passes.forget()

    def features(self, layers: tuple[int, ...], rows: Tensor) -> Tensor:
        """Features of the last pass at `rows` [m]: [m, len(layers) * hidden], low to high; final states for ()."""
        if not layers:
            return self._states[-1][0, rows]
        return torch.cat([self._states[layer][0, rows] for layer in sorted(layers)], dim=-1)

    def _new_cache(self, capacity: int) -> KVCache:
        sizes = {"kv_heads": self._kv_heads, "head_dim": self._head_dim, "dtype": self.dtype}
        if not self.static:
            return KVCache(devices=self._devices, capacity=capacity, **sizes)
        # What was recorded refers to the old one. Doubling bounds how often everything is recorded again.
        self._passes.forget()
        rows = padded_rows(max(capacity + PADDING, 2 * self.cache.rows if self.cache else 0))
        return StaticCache(devices=self._devices, capacity=rows - PADDING, rows=rows, **sizes)

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
        return self._forward(tokens, positions, mask, self.cache)

    def _replay(self, tokens: Tensor, depths: Tensor, visible: Tensor | None) -> Tensor:
        """`verify` on the static engine: padded to a size and a window that recur."""
        n = tokens.shape[0]
        self.cache.room_for(n)
        size = padded_nodes(n)
        visible = self._alone if visible is None else visible
        if size > n:
            tokens, depths = F.pad(tokens, (0, size - n)), F.pad(depths, (0, size - n))
            visible = F.pad(visible, (0, size - n, 0, size - n))
        window = padded_rows(self.cache.length + size)
        logits, *states = self._passes(tokens, depths, visible, window=window)
        self._states = dict(zip(self._kept, states, strict=True))
        return logits[:n]

    def _padded_pass(self, tokens: Tensor, depths: Tensor, visible: Tensor, *, window: int) -> tuple[Tensor, ...]:
        """What is recorded: logits [n, vocab] and the kept states, each [1, n, hidden]. Padded nodes see themselves."""
        n = tokens.shape[0]
        start = self.cache.start
        rows = start + torch.arange(n, device=self.device)
        seen = (torch.arange(window, device=self.device) < start).repeat(n, 1)
        seen.index_copy_(1, rows, visible | torch.eye(n, dtype=torch.bool, device=self.device))
        mask = torch.zeros(n, window, dtype=self.dtype, device=self.device).masked_fill_(~seen, float("-inf"))
        mask = mask.repeat(self._heads // self._kv_heads, 1)
        hidden = self._forward(tokens, depths + start, mask, self.cache.window(rows, window))
        return self.project(hidden), *(self._states[layer] for layer in self._kept)

    def _forward(self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: KVCache | Window) -> Tensor:
        if self._sharded:
            tokens, positions, mask = (tensor.to(self._devices[0]) for tensor in (tokens, positions, mask))
        out = self._decoder(
            input_ids=tokens[None],
            position_ids=positions[None],
            attention_mask=mask[None, None],
            use_cache=True,
            **{self._cache_keyword: cache},
        )
        hidden = out.last_hidden_state[0]
        return hidden.to(self.device) if self._sharded else hidden

    @property
    def _kept(self) -> list[int]:
        """Keys of the states that a pass leaves behind: the final ones and the tapped layers."""
        return [-1, *sorted(self._taps)]

    def _keep(self, layer: int, state: Tensor) -> None:
        self._states[layer] = state.to(self.device) if self._sharded else state

    def _keep_final(self, _module: nn.Module, _args: tuple, output: Tensor) -> None:
        self._keep(-1, output)

    def _keeper(self, layer: int):
        def keep(_module: nn.Module, args: tuple, kwargs: dict) -> None:
            self._keep(layer, args[0] if args else kwargs["hidden_states"])

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
    logits = model(input_ids=ids, use_cache=False).logits[0, 2:].float()
    return logits.to(model.get_output_embeddings().weight.device)


def _pass_bytes(model: nn.Module) -> int:
    """Weights of the decoder layers, the final norm and the output projection; of the embedding a pass reads a few rows."""
    read = {id(tensor): tensor for tensor in model.parameters()}
    read.pop(id(model.get_input_embeddings().weight), None)
    head = model.get_output_embeddings().weight
    read[id(head)] = head
    return sum(tensor.numel() * tensor.element_size() for tensor in read.values())


def why_eager(model: nn.Module) -> str | None:
    """Why a model's passes cannot be recorded; None where nothing speaks against it."""
    home = model.get_output_embeddings().weight.device
    if len(devices := {home, *layer_devices(model.get_decoder(), home)}) > 1:
        return f"it is split over {len(devices)} devices"
    rope = getattr(getattr(model.get_decoder(), "rotary_emb", None), "rope_type", "default")
    if rope in ("dynamic", "longrope"):
        return f"its rotary embedding ({rope}) looks at positions on the host"
    return None


def _refusal(model: nn.Module, reason: str) -> str:
    return (
        f"{type(model).__name__} is not a decoder that talon_bench can drive: {reason};"
        " use one whose layers take a 4-d mask and a cache (Llama, Mistral, Qwen2, Qwen3 and their like)"
    )
