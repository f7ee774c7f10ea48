"""Write all results as one HTML page: `tespec report` from a checkout."""

from installed import call

if __name__ == "__main__":
    call("report")
