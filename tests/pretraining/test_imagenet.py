import pytest
import torch
from PIL import Image

from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.datasets.images import open_images
from tespec.pretraining.method import new_network, open_pretraining


def test_a_folder_of_images(tmp_path):
    for name in ("a/1.png", "a/2.PNG", "b/1.jpg", "val/a/3.png", "val/b/4.png", ".hidden/x.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 10), (200, 10, 10)).save(path, "PNG")
    folder = open_images(tmp_path)
    assert [path.name for path in folder.held_out] == ["3.png", "4.png"]
    assert len(folder.train) == 3
    assert folder.classes == ("a", "b")
    before = folder.fingerprint()
    (tmp_path / "a" / "1.png").write_bytes(b"no image")
    assert open_images(tmp_path).fingerprint() != before
    settings = pretraining_settings("imagenet", "sample", ["batch_size=3"])
    steps = open_pretraining(settings, tmp_path).steps(0)
    with pytest.raises(UserError, match=r"a/1.png: not a readable image; copy it again or remove it"):
        steps[0]


def test_classes_are_needed_for_classification_alone(tmp_path):
    for number in range(24):
        Image.new("L", (20, 10)).save(tmp_path / f"{number}.png")
    settings = pretraining_settings("imagenet", "sample", [])
    with pytest.raises(UserError, match="its images lie in 1 folder; give a folder with one folder of images"):
        new_network(settings, open_pretraining(settings, tmp_path))
    batch = open_pretraining(pretraining_settings("moby", "sample", ["batch_size=4"]), tmp_path).steps(0)[0]
    assert batch["views"].shape == (4, 2, 1, 64, 64)
    assert batch["views"].dtype == torch.uint8
    assert batch["color_jitter"].shape == (4, 2, 2)
