"""Time ours beside the built-in and its peers, and measure their memory; writes JSON, a table and a figure.

$ python scripts/benchmark.py --lengths 512 2048 --tokens_per_batch 2048
$ python scripts/benchmark.py --mixed 32-512x16 --mode train --dropout 0.1 --rounds 3 --output_dir runs/training
"""

import sys

from hf_roformer.benchmarks import markdown, read_plan, run_benchmark, write_report


def main(command_line: list[str]) -> None:
    plan = read_plan(command_line)
    report = run_benchmark(plan)
    write_report(report, plan.output_dir)
    sys.stdout.write(markdown(report))


if __name__ == "__main__":
    main(sys.argv[1:])
