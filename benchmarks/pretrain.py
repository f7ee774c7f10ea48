"""Pre-train a backbone without labels: `tespec pretrain` from a checkout."""

from installed import call

if __name__ == "__main__":
    call("pretrain")
