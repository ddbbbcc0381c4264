"""Train on a text, look at the result, let it write: what the command does, in Python."""

import sys

import clearhead as ch

source = sys.argv[1] if len(sys.argv) > 1 else "stories"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200

run = ch.train(source, preset="small", options={"train": {"steps": steps}})
print(run.evaluate())
print(run.generate("Once", max_new_tokens=200, seed=1))
