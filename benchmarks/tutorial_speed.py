"""Generation with the `tutorial` shape against the tutorials' own code, interleaved in one process.

    python benchmarks/tutorial_speed.py [--rounds 7] [--text FILE] [--clock wall]

Prints tokens per second of both (median over rounds, lowest and highest) and the ratio, as a table. Training beside the
same code is in `training_speed.py`.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for both sides: a busy neighbor then costs little

from pathlib import Path

import torch
from side_by_side import Row, arguments, compare, machine
from tutorial_code import TutorialModel

from clearhead.config import RunConfig, SamplingConfig
from clearhead.config.presets import PRESETS
from clearhead.data import prepare
from clearhead.inference import stream_ids
from clearhead.models import CausalLM, build_model

NEW_TOKENS, STREAMS = 256, 16


def main() -> None:
    parser = arguments(__doc__, 7)
    parser.add_argument("--text", default="shakespeare" if os.environ.get("CLEARHEAD_DATA") else "stories")
    args = parser.parse_args()
    data = prepare(RunConfig.read({"data": {"source": args.text}}).data)
    layer = {**PRESETS["tutorial"].options}
    model = build_model(RunConfig.read(layer, {"model": {"vocab_size": data.tokenizer.vocab_size}}).model).eval()
    assert isinstance(model, CausalLM)
    plain = TutorialModel(vocab_size=data.tokenizer.vocab_size).eval()
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in model.parameters())
    prompt = [int(token) for token in data.val[:16]]

    def write(streams: int) -> float:
        sampling = SamplingConfig(max_new_tokens=NEW_TOKENS, temperature=1.0, seed=1)
        return sum(len(column) for column in stream_ids(model, [prompt] * streams, sampling))

    def rewrite(streams: int) -> float:
        plain.generate(torch.tensor([prompt] * streams), NEW_TOKENS)
        return streams * NEW_TOKENS

    print(f"{machine()}, text {Path(args.text).name}")
    for streams in (1, STREAMS):
        print(f"\n| generation, {NEW_TOKENS} tokens | streams | tokens per second | ratio |\n|---|---|---|---|")
        rows = [
            Row("tutorials' code", str(streams), lambda n=streams: rewrite(n)),  # type: ignore[misc]
            Row("clearhead", str(streams), lambda n=streams: write(n)),  # type: ignore[misc]
        ]
        print("\n".join(compare(rows, args.rounds, args.clock)))


if __name__ == "__main__":
    main()
