"""SSL methods that TESPEC is compared with, one file each."""

# Methods by name, and their modules, so that names are known without importing torch.
MODULES = {
    "scratch": "baselines.scratch",
    "rvt": "baselines.scratch",
    "imagenet": "baselines.imagenet",
    "moby": "baselines.moby",
    "ecdp": "baselines.ecdp",
    "ecddp": "baselines.ecddp",
    "ecddp_resnet": "baselines.ecddp",
    "mem": "baselines.mem",
    "mem-tokenizer": "baselines.mem_tokenizer",
    "cm3ae": "baselines.cm3ae",
    "scaleevent": "baselines.scaleevent",
    "cpc": "baselines.cpc",
    "gep": "baselines.released",
    "eventpretrain": "baselines.released",
    "depthanyevent": "baselines.released",
}

# Deviation that all methods which learn from events have in common.
COUNTS = "events are counts up to 10 in 10 bins per polarity, as in fine-tuning"
