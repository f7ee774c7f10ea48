"""Run what is missing of a set of runs: `tespec plan` of a checkout."""

from installed import call

if __name__ == "__main__":
    call("plan")
