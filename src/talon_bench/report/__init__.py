"""Reports: pure functions from the records of finished runs to tables, figures and the end-of-run summary.

load      run folders -> RunData
tables    main table (paper table 1 layout) and detail table; CSV, Markdown, LaTeX
notes     what stands under every table: definitions, provenance, warnings
figures   speedup, verification cost, acceptance funnel, time of a round
console   the table and the JSON line a run ends with
"""
