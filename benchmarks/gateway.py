"""What Ferry's gateway costs: one load on vLLM's own OpenAI server and on Ferry with one engine.

Both servers stand ready on this machine with the same model, KV cache and batch limits; only one
is loaded at a time, in turns, and who goes first alternates. Ratios are taken pair by pair.

    python -m benchmarks.gateway [--rounds 5] [--concurrency 1 8 32]

The last line is JSON: per concurrency the medians of `throughput_ratio` (ours / vLLM's, higher is
better), `ttft_p50_extra_ms` and `itl_p50_ratio` (lower is better), with minimum and maximum.
"""

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Sequence

from benchmarks.load import Burst, Target, burst
from benchmarks.servers import ferry_server, vllm_server

OUTPUT_TOKENS = 48
PROMPT_WORDS = 60
"""About 100 prompt tokens with the chat template."""
SETTLE_S = 2.0
"""Pause between two runs: vLLM's worker processes spin for a second after their last message."""
GOALS = {"throughput_ratio": 0.97, "ttft_p50_extra_ms": 10.0, "itl_p50_ratio": 1.05}


def requests_for(concurrency: int) -> int:
    """Returns how many requests a run has: two waves, and at least four."""
    return max(4, 2 * concurrency)


async def measure(
    targets: Sequence[Target], rounds: int, concurrencies: Sequence[int]
) -> dict[int, dict[str, list[Burst]]]:
    """Returns concurrency -> target name -> bursts, one a round, in the order of the rounds."""
    runs: dict[int, dict[str, list[Burst]]] = {
        c: {t.name: [] for t in targets} for c in concurrencies
    }
    for target in targets:  # warm-up: the first requests compile samplers and fill caches
        await burst(
            target, concurrency=8, requests=8, max_tokens=8, prompt_words=PROMPT_WORDS, seed=-1
        )
    for number in range(rounds):
        for concurrency in concurrencies:
            for target in targets if number % 2 == 0 else reversed(targets):
                await asyncio.sleep(SETTLE_S)
                result = await burst(
                    target,
                    concurrency=concurrency,
                    requests=requests_for(concurrency),
                    max_tokens=OUTPUT_TOKENS,
                    prompt_words=PROMPT_WORDS,
                    seed=number * 1000 + concurrency,
                )
                runs[concurrency][target.name].append(result)
                print(
                    f"round {number + 1}  c={concurrency:<3} {target.name:<6} "
                    f"{result.tokens_per_s:7.1f} tokens/s  TTFT p50 {result.ttft_p50_ms:7.1f} ms  "
                    f"ITL p50 {result.itl_p50_ms:6.1f} ms",
                    flush=True,
                )
    return runs


def compare(ours: Sequence[Burst], theirs: Sequence[Burst]) -> dict[str, float]:
    """Returns the medians over the rounds of the paired figures, and their spread."""
    pairs = list(zip(ours, theirs, strict=True))
    series = {
        "throughput_ratio": [o.tokens_per_s / t.tokens_per_s for o, t in pairs],
        "ttft_p50_extra_ms": [o.ttft_p50_ms - t.ttft_p50_ms for o, t in pairs],
        "itl_p50_ratio": [o.itl_p50_ms / t.itl_p50_ms for o, t in pairs],
    }
    figures: dict[str, float] = {}
    for name, values in series.items():
        figures[name] = round(statistics.median(values), 3)
        figures[f"{name}_min"] = round(min(values), 3)
        figures[f"{name}_max"] = round(max(values), 3)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    args = parser.parse_args()
    with vllm_server() as theirs, ferry_server(instances=1) as ours:
        runs = asyncio.run(measure([theirs, ours], args.rounds, args.concurrency))
    result = {str(c): compare(runs[c][ours.name], runs[c][theirs.name]) for c in args.concurrency}
    print(json.dumps({"concurrency": result, "rounds": args.rounds, "goals": GOALS}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
