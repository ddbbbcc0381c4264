"""What lm-eval reads from a served run, beside `clearhead evaluate`: log-likelihoods of texts.

    pip install 'lm_eval[api]'
    clearhead serve RUN --port 8000        # in another terminal
    python benchmarks/lm_eval_likelihoods.py RUN [--address http://127.0.0.1:8000]

lm-eval's own `local-completions` asks the server, with the run's folder as Hugging Face's tokenizer. The texts are the
run's own and fit into its context, so that both judge the same tokens.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from clearhead.workflows import evaluate, load
from clearhead.workflows.evaluating import Score

SEEDS = range(1, 9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--address", default="http://127.0.0.1:8000")
    args = parser.parse_args()
    from lm_eval.models.openai_completions import LocalCompletionsAPI  # so that --help needs none of it

    run = load(args.run)
    context = run.config.model.block_size
    client = LocalCompletionsAPI(
        model=run.name,
        base_url=f"{args.address}/v1/completions",
        tokenizer=str(run.folder),
        max_length=context,
        tokenized_requests=True,
    )
    print("| tokens | lm-eval, nats | evaluate, nats | difference per token |\n|---|---|---|---|")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        for seed in SEEDS:
            text = run.generate("The ", max_new_tokens=context * seed // (2 * len(SEEDS)), seed=seed)
            ids = client.tokenizer.encode(text, add_special_tokens=False)
            assert ids == run.encode(text).flatten().tolist(), "the tokenizers differ"
            [(log_likelihood, _)] = client._loglikelihood_tokens([(("", text), ids[:1], ids[1:])])
            path.write_text(text, encoding="utf-8")
            score = evaluate(run, str(path))
            assert isinstance(score, Score)
            difference = abs(log_likelihood / (len(ids) - 1) + score.loss)
            print(f"| {len(ids)} | {-log_likelihood:.4f} | {score.loss * score.tokens:.4f} | {difference:.1e} |")


if __name__ == "__main__":
    main()
