"""`talon-bench doctor`: whether one target and its heads are fit to be measured on this machine.

talon-bench doctor target=llama31_8b
talon-bench doctor target=qwen3_8b head.eagle3.rope_theta=10000 lineup=table1
talon-bench doctor doctor.out=results/local/smoke/doctor.json

Each line is ok, a warning or a fault, with what was found, what was expected and the fix. Exit status 2 with any fault.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from talon_bench.commands import parse, usage
from talon_bench.compose import compose_config
from talon_bench.doctor.config import DoctorConfig
from talon_bench.errors import UsageError


def main(arguments: Sequence[str]) -> int:
    """Examine, print, and keep the verdict where asked; 0, or 2 with a fault. Raises UsageError for a bad request."""
    request = parse("doctor", DoctorConfig, arguments)
    if request.help:
        print(usage("doctor", __doc__ or "", DoctorConfig))
        return 0
    if request.multirun:
        raise UsageError("doctor examines one target and its heads; leave -m out")
    options: DoctorConfig = request.options
    out = Path(options.out).expanduser() if options.out else None
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"doctor.out={options.out}: there is no such folder; make it, or give another file")
    config = compose_config(request.overrides)
    # torch and transformers take seconds to import; a bad request should not wait for them.
    from talon_bench.doctor.examination import Examination

    examination = Examination(config, options, request.overrides)
    examination.run(lambda finding: print(finding.line, flush=True))
    verdict = json.dumps(examination.as_json())
    if out is not None:
        out.write_text(verdict + "\n", encoding="utf-8")
    print(verdict, flush=True)
    return 2 if examination.verdict == "fault" else 0
