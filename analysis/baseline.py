"""AR of this harness beside transformers' own `generate`: the same ids, and how much faster.

    python -m analysis.baseline dataset=gsm8k data.root=FOLDER dataset.limit=20 target.dtype=float32

Both decode each prompt in turn, greedily, on models of the same weights and dtype. Ends with one JSON line; in float32 a
differing answer is status 1.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

import torch
from rich.progress import track
from transformers import AutoModelForCausalLM

from analysis.command import guarded
from talon_bench import provenance
from talon_bench.clock import PhaseClock
from talon_bench.compose import compose_config
from talon_bench.decode import Answer, decode
from talon_bench.drafters.base import NoDrafter
from talon_bench.loading import checkpoint_folder, load_target
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.prompts.source import load_prompts
from talon_bench.sampling import Sampler


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.baseline", description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="Hydra overrides: target, dataset, data, decode, launch")
    config = compose_config(parser.parse_args(argv).overrides)
    prompts = load_prompts(config.dataset, config.data)
    loaded = load_target(config.target, config.launch)
    target = loaded.target
    stock = (
        AutoModelForCausalLM.from_pretrained(checkpoint_folder(config.target), dtype=target.dtype)
        .to(target.device)
        .eval()
    )
    renderer = ChatRenderer(
        loaded.tokenizer, config.dataset.system, config.target.thinking, config.target.chat_template
    )
    cap = config.max_new_tokens
    machine = provenance.describe(target.device, target.dtype)
    equal, seconds, tokens = 0, {"ar": 0.0, "generate": 0.0}, {"ar": 0, "generate": 0}
    for prompt in track(prompts.prompts, description=f"{config.target.name} x {prompts.name}"):
        ids = renderer.render([{"role": "user", "content": prompt.turns[0]}])
        answer = Answer(loaded.eos_ids, cap)
        start = time.perf_counter()
        for _ in decode(
            target, NoDrafter(target.device), ids, answer,
            sampler=Sampler(), generator=torch.Generator(), clock=PhaseClock.on(target.device),
        ):  # fmt: skip
            pass
        seconds["ar"] += time.perf_counter() - start
        start = time.perf_counter()
        out = stock.generate(
            torch.tensor([ids], device=target.device),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=target.device),
            max_new_tokens=cap,
            do_sample=False,
            eos_token_id=sorted(loaded.eos_ids),
            pad_token_id=min(loaded.eos_ids),
        )
        seconds["generate"] += time.perf_counter() - start
        theirs = out[0, len(ids) :].tolist()
        equal += theirs == answer.ids
        tokens["ar"] += len(answer.ids)
        tokens["generate"] += len(theirs)
    speed = {name: tokens[name] / seconds[name] for name in seconds}
    result = {
        "target": config.target.name,
        "dataset": prompts.name,
        "dtype": machine["dtype"],
        "threads": machine["threads"],
        "busy": machine["busy"],
        "prompts": len(prompts.prompts),
        "equal": equal,
        "tokens_per_second": {name: round(value, 2) for name, value in speed.items()},
        "ratio": round(speed["ar"] / speed["generate"], 3),
    }
    print(json.dumps(result))
    return int(target.dtype is torch.float32 and equal < len(prompts.prompts))


if __name__ == "__main__":
    raise SystemExit(main())
