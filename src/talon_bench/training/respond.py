"""Answers of a target to many prompts at once.

Every prompt has a slot of one cache. A slot whose answer is finished takes the next prompt, so that all passes are full until
none is waiting, and then the slots close up: no row is ever computed for nothing. Rows stand at the front of the cache
without padding between them; each has its own length and sees no further. What all prompts begin with (a system message) is
computed once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from talon_bench.loading import LoadedTarget

ATTENTION = "talon_bench_slots"
"""Name under which transformers finds the attention of `_attention`."""


@dataclass(frozen=True)
class Question:
    """A rendered prompt. `draws`: a number in [0, 1) for each token to sample, None for greedy answers."""

    ids: list[int]
    draws: np.ndarray | None = None


class Responder:
    """Writes answers with a loaded target, whose attention it takes over.

    `slots`: answers written at a time; `temperature`: of sampled ones.
    """

    def __init__(self, loaded: LoadedTarget, *, slots: int, max_new_tokens: int, temperature: float) -> None:
        self._target = loaded.target
        self._eos = loaded.eos_ids
        self._slots = slots
        self._most = max_new_tokens
        self._temperature = temperature
        self._target.model.set_attn_implementation(ATTENTION)

    @torch.inference_mode()
    def answer(self, questions: list[Question]) -> list[list[int]]:
        """Ids of each answer, its end token included where it came before the cap. A function of `questions` alone."""
        # Long prompts first: what runs together is alike in length, and the last passes are short ones.
        waiting = deque(sorted(range(len(questions)), key=lambda number: -len(questions[number].ids)))
        answers: list[list[int]] = [[] for _ in questions]
        if not waiting:
            return answers
        cache = self._cache(min(self._slots, len(questions)), len(questions[waiting[0]].ids) + self._most)
        self._share(cache, [question.ids for question in questions])
        rows: list[int] = []  # the question of each slot in use
        while waiting or rows:
            while waiting and len(rows) < cache.slots:
                number = waiting.popleft()
                logits = self._prefill(cache, len(rows), questions[number].ids)
                self._choose(logits[None], [number], questions, answers)
                if not self._finished(answers[number]):
                    rows.append(number)
            if not rows:
                continue
            logits = self._step(cache, [answers[number][-1] for number in rows])
            self._choose(logits, rows, questions, answers)
            for slot in reversed(range(len(rows))):
                if self._finished(answers[rows[slot]]):
                    cache.move(len(rows) - 1, slot)
                    rows[slot] = rows[-1]
                    rows.pop()
        return answers

    def _finished(self, answer: list[int]) -> bool:
        return answer[-1] in self._eos or len(answer) >= self._most

    def _choose(self, logits: Tensor, rows: list[int], questions: list[Question], answers: list[list[int]]) -> None:
        """Append the next token of each row: the likeliest one, or where the row's draw falls among all of them."""
        chosen = logits.argmax(dim=-1)
        sampled = [slot for slot, number in enumerate(rows) if questions[number].draws is not None]
        if sampled:
            draws = [float(questions[rows[slot]].draws[len(answers[rows[slot]])]) for slot in sampled]
            ladder = torch.softmax(logits[sampled] / self._temperature, dim=-1).cumsum(dim=-1)
            height = torch.tensor(draws, device=ladder.device)[:, None] * ladder[:, -1:]
            steps = torch.searchsorted(ladder, height, right=True)[:, 0]
            chosen[sampled] = steps.clamp_(max=logits.shape[1] - 1)
        for number, token in zip(rows, chosen.tolist(), strict=True):
            answers[number].append(token)

    def _share(self, cache: SlotCache, prompts: list[list[int]]) -> None:
        """Compute the keys and values of the tokens that all prompts begin with; the last token of a prompt is its own."""
        # The first and the last in order differ where any two do.
        first, last = min(prompts), max(prompts)
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
        shared = min(sum(1 for _ in alike), min(map(len, prompts)) - 1)
        if shared > 0 and len(prompts) > 1:
            self._prefill(cache, 0, prompts[0][:shared])
            cache.share(shared)

    def _prefill(self, cache: SlotCache, slot: int, ids: list[int]) -> Tensor:
        """Logits [vocab] behind a prompt, whose keys and values fill the slot."""
        start, n = cache.fill(slot, len(ids)), len(ids)
        positions = torch.arange(start, n, device=self._target.device)
        mask = torch.zeros(n - start, n, dtype=self._target.dtype, device=self._target.device)
        mask.masked_fill_(torch.arange(n, device=self._target.device) > positions[:, None], float("-inf"))
        tokens = torch.tensor([ids[start:]], device=self._target.device)
        return self._pass(tokens, positions[None], mask[None, None], cache)[0]

    def _step(self, cache: SlotCache, tokens: list[int]) -> Tensor:
        """Logits [rows, vocab] behind one more token of each row."""
        lengths = cache.lengths[: len(tokens)]
        hidden = torch.arange(cache.extend(len(tokens)), device=lengths.device) > lengths[:, None]
        mask = torch.zeros(hidden.shape, dtype=self._target.dtype, device=lengths.device)
        mask.masked_fill_(hidden, float("-inf"))
        logits = self._pass(
            torch.tensor(tokens, device=lengths.device)[:, None], lengths[:, None], mask[:, None, None], cache
        )
        lengths += 1
        return logits

    def _pass(self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> Tensor:
        """Logits, float32 [rows, vocab], behind the last token of each row of `tokens` [rows, n]."""
        out = self._target.model.get_decoder()(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            **{self._target._cache_keyword: cache},
        )
        return self._target.project(out.last_hidden_state[:, -1].to(self._target.device))

    def _cache(self, slots: int, capacity: int) -> SlotCache:
        return SlotCache(
            devices=self._target._devices,
            slots=slots,
            kv_heads=self._target._kv_heads,
            capacity=capacity,
            head_dim=self._target._head_dim,
            dtype=self._target.dtype,
        )


class SlotCache:
    """Keys and values of several sequences, for each layer two blocks [slots, kv_heads, capacity, head_dim] on its device.

    Row b of slot s is position b of its sequence. It stands in for transformers' `Cache` in a model's forward, which only
    calls `update` and `get_seq_length`.
    """

    is_compileable = False

    def __init__(
        self,
        *,
        devices: Sequence[torch.device],
        slots: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> None:
        shape = (2, slots, kv_heads, capacity, head_dim)
        self._layers = [torch.zeros(shape, dtype=dtype, device=device) for device in devices]
        self._shared = [block[:, 0, :, :0] for block in self._layers]
        self.slots = slots
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=devices[-1])
        self._numbers = torch.arange(slots, device=devices[-1])
        self._slot: int | None = None
        self._rows = self._start = self._end = 0

    def share(self, tokens: int) -> None:
        """Let every prompt filled from now on begin with the first `tokens` rows of slot 0."""
        self._shared = [block[:, 0, :, :tokens].clone() for block in self._layers]

    def fill(self, slot: int, tokens: int) -> int:
        """Let the next pass fill a slot with a prompt of `tokens` tokens; how many of them are there already."""
        for block, shared in zip(self._layers, self._shared, strict=True):
            block[:, slot, :, : shared.shape[2]] = shared
        self._slot, self._start, self._end = slot, self._shared[0].shape[2], tokens
        self.lengths[slot] = tokens
        return self._start

    def extend(self, rows: int) -> int:
        """Let the next pass write one token behind each of the first `rows` sequences; rows that it can see then."""
        self._slot, self._rows = None, rows
        self._start = int(self.lengths[:rows].max())
        self._end = self._start + 1
        return self._end

    def move(self, source: int, slot: int) -> None:
        """Put the sequence of one slot in the place of another's."""
        if source != slot:
            end = int(self.lengths[source])
            for block in self._layers:
                block[:, slot, :, :end] = block[:, source, :, :end]
            self.lengths[slot] = self.lengths[source]

    def update(self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write keys and values [rows, kv_heads, n, head_dim]; what the pass attends to."""
        keys, values = self._layers[layer]
        if self._slot is not None:
            slot = slice(self._slot, self._slot + 1)
            keys[slot, :, self._start : self._end] = key
            values[slot, :, self._start : self._end] = value
            return keys[slot, :, : self._end], values[slot, :, : self._end]
        numbers, lengths = (tensor[: self._rows].to(key.device) for tensor in (self._numbers, self.lengths))
        keys[numbers, :, lengths] = key[:, :, 0]
        values[numbers, :, lengths] = value[:, :, 0]
        return keys[: self._rows, :, : self._end], values[: self._rows, :, : self._end]

    def get_seq_length(self, layer: int = 0) -> int:
        return self._start


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """Attention whose grouped heads read each key once: query [rows, heads, n, d], mask [rows or 1, 1, n, s]."""
    rows, heads, n, d = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    stacked = query.reshape(rows, kv_heads, group * n, d)
    scores = torch.matmul(stacked * scaling, key.transpose(2, 3))
    scores += attention_mask if n == 1 else attention_mask.repeat(1, 1, group, 1)
    out = torch.matmul(scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype), value)
    return out.view(rows, heads, n, d).transpose(1, 2), None


AttentionInterface.register(ATTENTION, _attention)
