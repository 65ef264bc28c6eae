"""The measured run: every method on every prompt in turn, in one process. The only room that knows time.

What is measured is written down raw, one row per verification and one per answer; see docs/records.md.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from talon_bench import provenance
from talon_bench.clock import PhaseClock
from talon_bench.decode import Answer, Round, decode, prefill
from talon_bench.drafters.base import Drafter
from talon_bench.errors import UsageError
from talon_bench.lineup import BASELINE
from talon_bench.prompts.chat import ChatRenderer, prompt_hash
from talon_bench.prompts.prompt import Prompt
from talon_bench.sampling import Sampler
from talon_bench.target import Target

PHASES = ("draft", "verify", "other")


@dataclass(frozen=True)
class Bench:
    """A line-up ready to be measured. `drafters` keeps line-up order; AR is the first."""

    target: Target
    drafters: dict[str, Drafter]
    renderer: ChatRenderer
    eos_ids: frozenset[int]
    sampler: Sampler
    max_new_tokens: int
    seed: int

    @property
    def shapes(self) -> dict:
        """Shapes of passes that the static engine has met: the target's, and those of each head by its name."""
        if not self.target.static:
            return {}
        heads = [drafter.head for drafter in self.drafters.values() if hasattr(drafter, "head")]
        return {"target": self.target.shapes, "heads": {head.name: head.static_passes.shapes for head in heads}}

    def warm_up(self, prompt: list[int], tokens: int) -> float:
        """Every method decodes `tokens` tokens unmeasured; the seconds that this took per token and method, on average.

        A prompt that does not fit the window is cut. A method that fails here fails again where it is recorded; only what
        the user can mend (activations that overflow in float16) ends the run.
        """
        if self.target.static:
            # Recording takes longer than decoding, and happens once.
            largest = max(drafter.budget for drafter in self.drafters.values())
            self._warm_shapes(prompt[: max(self.target.window - self.max_new_tokens - largest, 1)])
        clock = PhaseClock.on(self.target.device)
        for drafter in self.drafters.values():
            room = max(self.target.window - tokens - drafter.budget, 1)
            try:
                for _ in self._decode(drafter, prompt[:room], Answer(frozenset(), tokens), clock):
                    pass
            except UsageError:
                raise
            except Exception:
                continue
        gc.collect()
        gc.freeze()
        return sum(clock.take().values()) / 1e3 / (tokens * len(self.drafters))

    def measure(
        self, number: int, prompt: Prompt, on_answer: Callable[[dict], None], *, keep_trees: bool = False
    ) -> tuple[list[dict], list[dict], list[dict]]:
        """Rows (turns, rounds, trees) of one prompt: each turn by all methods, in an order that rotates with prompt and turn.

        The draft trees themselves are kept on request only. A turn's history holds AR's answers, whatever the other methods
        wrote, so that all methods meet the same prompt.
        """
        messages: list[dict[str, str]] = []
        turn_rows: list[dict] = []
        round_rows: list[dict] = []
        tree_rows: list[dict] = []
        for turn, text in enumerate(prompt.turns):
            messages.append({"role": "user", "content": text})
            key = {"prompt_id": prompt.id, "turn": turn}
            rows, rounds = self._measure_turn(number + turn, key, self.renderer.render(messages), on_answer)
            turn_rows += [{**row, "category": prompt.category} for row in rows]
            round_rows += [{**facts, **_round_row(entry)} for facts, entry in rounds]
            if keep_trees:
                tree_rows += [{**facts, **self._tree_row(entry)} for facts, entry in rounds]
            baseline = next(row for row in rows if row["method"] == BASELINE)
            if baseline["status"] != "ok":
                turn_rows += self._not_reached(prompt, turn + 1)
                break
            answer = [token for token in baseline["output_ids"] if token not in self.eos_ids]
            messages.append({"role": "assistant", "content": self.renderer.tokenizer.decode(answer)})
        return turn_rows, round_rows, tree_rows

    def _measure_turn(
        self, rotation: int, key: dict, ids: list[int], on_answer: Callable[[dict], None]
    ) -> tuple[list[dict], list[tuple[dict, Round]]]:
        rows: dict[str, dict] = {}
        rounds: list[tuple[dict, Round]] = []
        shared = {**key, "prompt_tokens": len(ids), "prompt_sha256": prompt_hash(ids)}
        names = list(self.drafters)
        first = rotation % len(names)
        too_long = self._too_long(len(ids))
        if not too_long:
            self._warm_shapes(ids)
        for order, name in enumerate(names[first:] + names[:first]):
            row = {**shared, "method": name, "order": order, "load": provenance.load()}
            if too_long:
                rows[name] = {**row, **_nothing("skipped", too_long)}
                on_answer(rows[name])
                continue
            try:
                measured, method_rounds = self._answer(self.drafters[name], key, ids)
                rounds += [({**key, "method": name, **facts}, entry) for facts, entry in method_rounds]
                rows[name] = {**row, **measured, "status": "ok"}
            except Exception as error:
                # A failed cell is a row with its error, never a gap; the other methods go on.
                message = provenance.without_folders_in(f"{type(error).__name__}: {error}")
                rows[name] = {**row, **_nothing("failed", message)}
            on_answer(rows[name])
        if self.sampler.greedy:
            for row in rows.values():
                row.update(self._compare(ids, rows[BASELINE], row))
        return [rows[name] for name in names], rounds

    def _answer(self, drafter: Drafter, key: dict, ids: list[int]) -> tuple[dict, list[tuple[dict, Round]]]:
        clock = PhaseClock.on(self.target.device)
        answer = Answer(self.eos_ids, self.max_new_tokens)
        rounds: list[tuple[dict, Round]] = []
        total = dict.fromkeys((*PHASES, "prefill"), 0.0)
        generator = self._generator(key)
        for entry in self._decode(drafter, ids, answer, clock, generator):
            spent = clock.take()
            for phase, ms in spent.items():
                total[phase] += ms
            times = {f"{phase}_ms": spent.get(phase, 0.0) for phase in PHASES}
            rounds.append(({"round": len(rounds), **times}, entry))
        total["prefill"] += clock.take().get("prefill", 0.0)
        return {
            "output_ids": answer.ids,
            "new_tokens": len(answer.ids),
            "stop": answer.stop,
            "rounds": len(rounds),
            "draft_passes": sum(entry.draft_passes for _, entry in rounds),
            **{f"{phase}_ms": ms for phase, ms in total.items()},
            "decode_ms": sum(total[phase] for phase in PHASES),
        }, rounds

    def _decode(self, drafter: Drafter, ids: list[int], answer: Answer, clock: PhaseClock, generator=None):
        return decode(
            self.target,
            drafter,
            ids,
            answer,
            sampler=self.sampler,
            generator=generator or self._generator({}),
            clock=clock,
            eager=getattr(drafter, "eager", False),
        )

    def _warm_shapes(self, ids: list[int]) -> None:
        """One unmeasured pass per head over this prompt's length: kernels prepare themselves for each new shape.

        The static engine records here what the answers can need, for each method and in a cache that is large enough for all.
        """
        largest = max(drafter.budget for drafter in self.drafters.values())
        self.target.allocate(len(ids) + self.max_new_tokens + 1 + largest)
        seen = set()
        for drafter in self.drafters.values():
            kind = id(drafter if self.target.static else getattr(drafter, "head", None))
            if kind not in seen:
                seen.add(kind)
                # What fails here fails again in the measurement, where it is recorded.
                with torch.inference_mode(), contextlib.suppress(Exception):
                    answer = Answer(self.eos_ids, self.max_new_tokens)
                    token = prefill(self.target, drafter, ids, answer, self.sampler, self._generator({}))
                    drafter.propose(token, PhaseClock())
        with contextlib.suppress(Exception):
            self.target.prepare(largest, self.max_new_tokens)

    def _generator(self, key: dict) -> torch.Generator:
        """Seeded by the run's seed and the turn, alike for all methods."""
        text = f"{self.seed}/{key.get('prompt_id')}/{key.get('turn')}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
        return torch.Generator().manual_seed(seed)

    def _too_long(self, prompt_tokens: int) -> str | None:
        need = prompt_tokens + self.max_new_tokens + max(drafter.budget for drafter in self.drafters.values())
        if need <= self.target.window:
            return None
        return f"needs {need} positions (prompt {prompt_tokens}), the target's window is {self.target.window}"

    def _compare(self, ids: list[int], baseline: dict, row: dict) -> dict:
        """Whether the method wrote AR's ids; if not, where they part and how close the target's choice was there.

        `margin` is the difference of the two tokens' logits after AR's own prefix, from one pass off the clock.
        """
        if baseline["status"] != "ok" or row["status"] != "ok":
            return {}
        ours, theirs = row["output_ids"], baseline["output_ids"]
        if ours == theirs:
            return {"equals_ar": True}
        position = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        if position is None:
            return {"equals_ar": False, "diverged_at": min(len(ours), len(theirs)), "margin": float("inf")}
        self.target.allocate(len(ids) + position)
        logits = self.target.prefill(ids + theirs[:position])
        tokens = {"ar_token": theirs[position], "method_token": ours[position]}
        margin = float((logits[tokens["ar_token"]] - logits[tokens["method_token"]]).abs())
        return {"equals_ar": False, "diverged_at": position, **tokens, "margin": margin}

    def _tree_row(self, entry: Round) -> dict:
        """The draft tree of one verification, with the text of each token for readers without the tokenizer."""
        tokens = entry.tree.tokens.tolist()
        *pieces, next_piece = self.renderer.tokenizer.batch_decode([[token] for token in [*tokens, entry.next_token]])
        return {
            "tokens": tokens,
            "pieces": pieces,
            "parents": entry.tree.parents.tolist(),
            "scores": entry.tree.scores.tolist(),
            "path": entry.path,
            "next_token": entry.next_token,
            "next_piece": next_piece,
        }

    def _not_reached(self, prompt: Prompt, first: int) -> list[dict]:
        """Rows for the turns after one that AR has no answer to."""
        reason = "the turn before it has no AR answer to continue from"
        return [
            {
                "prompt_id": prompt.id,
                "category": prompt.category,
                "turn": turn,
                "method": name,
                **_nothing("skipped", reason),
            }
            for turn in range(first, len(prompt.turns))
            for name in self.drafters
        ]


def _round_row(entry: Round) -> dict:
    drafted = entry.path[1:]
    return {
        "context": entry.context,
        "draft_passes": entry.draft_passes,
        "nodes": entry.tree.size,
        "widths": entry.tree.widths() if entry.tree.size > 1 else [],
        "accepted": len(drafted),
        "emitted": entry.emitted,
        "path_ranks": entry.tree.ranks(drafted) if drafted else [],
    }


def _nothing(status: str, reason: str) -> dict:
    return {
        "status": status,
        "error": reason,
        "output_ids": [],
        "new_tokens": 0,
        "rounds": 0,
        "draft_passes": 0,
    }
