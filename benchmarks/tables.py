"""Print and write the comparison tables: `tespec tables` of a checkout."""

from installed import call

if __name__ == "__main__":
    call("tables")
