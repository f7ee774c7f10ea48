"""Fine-tune and evaluate one cell of the tables: `tespec run` from a checkout."""

from installed import call

if __name__ == "__main__":
    call("run")
