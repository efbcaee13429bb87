"""What `import keras_attn` adds to `import keras`, each in a new process."""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- it stands beside this file

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
LIMIT = 0.2


def importing(statement):
    def run():
        subprocess.run([sys.executable, "-c", statement], cwd=ROOT, check=True, capture_output=True)

    return run


def main():
    options = parser(__doc__.splitlines()[0], rounds=9).parse_args()
    statements = ["import keras", "import keras; import keras_attn"]
    base, both = median_seconds({name: importing(name) for name in statements}, options.rounds).values()
    print_table(
        f"Import, seconds of a whole process, medians of {options.rounds}; at most {LIMIT} s may be added.",
        ["import keras", "and keras_attn", "added"],
        [[f"{base:.2f}", f"{both:.2f}", f"{both - base:.2f}"]],
    )


if __name__ == "__main__":
    main()
