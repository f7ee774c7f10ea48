"""Print and write the comparison tables: `tespec tables` from a checkout."""

from installed import call

if __name__ == "__main__":
    call("tables")
