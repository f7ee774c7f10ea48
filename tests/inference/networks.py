"""Networks with random weights, in files as a fine-tuning writes them."""

import torch

from tespec.core.config import as_facts
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task
from tespec.weights.files import write_weights


def written(world, folder, name, arch="recurrent"):
    """File, network and task."""
    data = Data(world / name, "sample")
    settings = settings_of(data, name, arch)
    task = build_task(settings, data.root)
    torch.manual_seed(0)
    model = task.model().eval()
    path = folder / "model.safetensors"
    write_weights(path, model.state_dict(), as_facts(settings) | {"sensor": list(task.size)})
    return path, model, task
