"""The folder of a run: where it is, what lies in it, and how its files are written and checked.

`paths` and `find` look for runs, `create` makes one, `folder` opens its files; `digests` says whether they are what
was written. While a training goes on, `recorder` writes them and `tensorboard` too, if it is wanted. `records` judges
the lines of metrics.jsonl, `history` adds them up, `report` makes a page of them.
"""
