"""Reports: pure functions from the records of finished runs to tables, figures and the end-of-run summary.

load        run folders -> RunData
tables      main table (paper table 1 layout), detail table, and the files of every table
cells       rows against data sets: intervals, mean over data sets, the best of a column
ablation    a swept setting against data sets
efficiency  MAT, eta and gamma beside the speedup that they predict
roofline    how near passes come to the bandwidth of memory
groups      what the rows of several runs are called
render      CSV, Markdown and LaTeX
paper       published numbers beside ours
notes       what stands under every table: definitions, provenance, warnings
figures     speedup, verification cost, acceptance funnel, time of a round
trees       draft trees of a run, in the order in which they are drawn
tree_view   draft trees side by side, as a figure
page        the report page, one self-contained HTML file
console     the table and the JSON line a run ends with
"""
