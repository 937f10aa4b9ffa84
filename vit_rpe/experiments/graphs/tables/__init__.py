"""The graph tables of the paper, one module each: its cells, their settings, how they run.

`cells(done, quick)` returns what can be run now; `done` are the lines so far. Ranks say in which
order all tables together run, what tells most first:

| rank | |
|---|---|
| 0 - 3 | citation graphs: choices and accuracy |
| 9 | speed |
| 10 - 15 | motifs, a seed at a time, the additive form last |
| 16 | citation graphs: dynamic walks |
| 20 - 25 | cycles, shallow models before deep ones |
| 28 - 36 | accuracy within a time; diffusion, random features, lengths of walks |
| 40 - 99 | TU sets, first one run of each fold; lengths of walks on Pubmed |
"""
