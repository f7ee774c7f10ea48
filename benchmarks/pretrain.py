"""Pre-train a backbone without labels: `tespec pretrain` of a checkout."""

from installed import call

if __name__ == "__main__":
    call("pretrain")
