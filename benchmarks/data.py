"""Check, pack and preview data sets: `tespec data` from a checkout."""

from installed import call

if __name__ == "__main__":
    call("data")
