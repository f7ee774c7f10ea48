"""Run the missing jobs of a plan: `tespec plan` from a checkout."""

from installed import call

if __name__ == "__main__":
    call("plan")
