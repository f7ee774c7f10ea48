"""Mistakes on the command line are answered in one line, before data is opened or written."""

import shlex

import pytest

from tespec.core.paths import REPOSITORY
from tespec.models import EventSwin
from tespec.sample import world_folder
from tespec.weights.files import write_weights

CELL = "run --method scratch --task ddd17 "
ON_DATA = CELL + "--data {world}/ddd17 "
OF_RUN = ["--results", "results", "--runs", "runs", "--device", "cpu"]
PLACES = {
    "run": OF_RUN,
    "pretrain": OF_RUN,
    "tables": ["--results", REPOSITORY / "results" / "sample", "--out", "out"],
}
FILES = {"docs": REPOSITORY / "docs", "davis": REPOSITORY / "tests" / "data" / "davis.aedat4"}
RECIPE = {
    "backbone": "swin_micro",
    "recurrent": True,
    "bins": 10,
    "sensor": [64, 96],
    "method": "tespec",
    "data": "sample",
}
MISTAKES = [
    ("run", "--method is required"),
    ("run --method scratch", "--task is required"),
    ("run --task ddd17", "--method is required"),
    (CELL + "--set width=tiny", "unknown setting 'width'; use --backbone NAME"),
    (CELL + "--set backbone=swin_tiny", "unknown setting 'backbone'; use --backbone NAME"),
    (
        "pretrain --method moby --data sample --set width=tiny",
        "unknown setting 'width'; use --backbone NAME",
    ),
    ("pretrain --method tespec --set dataset=a/b", "dataset: 'a/b' is not allowed"),
    (
        "pretrain --method tespec --data sample --set objective.decoder.width=3",
        "unknown setting 'width'; choose from type",
    ),
    ("run --method tespek --task ddd17", "unknown method; did you mean 'tespec'"),
    (
        "run --method scratch --task ddd71",
        "ddd71: no such file in configs/tasks; did you mean 'ddd17'?",
    ),
    (
        CELL + "--set peak_lr=5e-4",
        "unknown setting 'peak_lr'; did you mean 'optimisation.peak_lr'?",
    ),
    (CELL + "--profile paper", "--profile paper: no ddd17 data given"),
    (CELL + "--data /data/ddd71", "/data/ddd71: no such file or folder; check the path"),
    (CELL + "--set bins 5", "Unused Tokens: ['5']; see --help"),
    (CELL + "--reference prior", "--reference cannot be combined with --method"),
    ("run --task ddd17 --reference prior --backbone swin_tiny", "cannot be combined with --check"),
    ("run --task ddd17 --reference control", "--reference control requires --checkpoint"),
    (
        "run --model m --predict r --out o --set batch_size=3",
        "--model cannot be combined with options of a run, such as --m",
    ),
    (CELL + "--freeze --probe", "--freeze cannot be combined with --probe"),
    (CELL + "--seeds 0 -3", 'Invalid value "-3"'),
    (CELL + "--out pictures", "--out cannot be used like this; give --model FILE --predict REC"),
    (CELL + "--reference prior --save-predictions", "--reference cannot be combined with --method"),
    (CELL + "--probe --save-predictions", "--save-predictions cannot be combined with --probe"),
    (CELL + "--score predictions", "--score needs --task, and no option of a run but --data and"),
    ("run --task ddd17 --score missing", "missing/predictions.json: No such file or directory; ch"),
    (CELL + "--launcher pytorch", "--launcher pytorch: RANK is not set; start with torchrun"),
    (
        "run --model typo.safetensors --predict drive.raw --out out",
        "typo.safetensors: no such file; give the model",
    ),
    (
        "run --method tespec --task ddd17 --backbone swin_microo",
        "backbone: unknown value 'swin_microo'; did you mean 'swin_micro'",
    ),
    (
        "run --method tespec --task ddd17 --backbone resnet_micro",
        "--backbone resnet_micro: TESPEC does not work with it; choose from swin_micro, swin_tiny",
    ),
    (
        "run --method mem --task ddd17 --backbone maxvit_micro",
        "MEM does not work with it; choose from swin_micro, swin_tiny, swin_tiny_ecddp, vit_base",
    ),
    (
        "run --method rvt --task ddd17 --backbone vit_micro",
        "--backbone vit_micro: RVT does not work with it; choose from maxvit_base, maxvit_micro",
    ),
    (
        CELL + "--set pretraining.batch_size=3",
        "--set pretraining.batch_size=3: this run has no pre-train",
    ),
    (CELL + "--checkpoint x.pth", "--method scratch: takes no --checkpoint"),
    (
        "run --method tespec --task ddd17 --backbone swin_tiny --checkpoint {weights}",
        "for --backbone swin_micro; give weights of backbone 'swin_tiny'",
    ),
    (
        "run --method scratch --task mvsec --probe",
        "--probe --task mvsec: probes support only segmentation",
    ),
    (
        "run --method cpc --task ddd17 --checkpoint {weights}",
        "was pre-trained with tespec, not with cpc;",
    ),
    (
        CELL + "--accumulate 3",
        "batch_size: 4 does not divide evenly among 1 processes with 3 gradient acc",
    ),
    (
        CELL + "--backbone resnet_micro --recompute",
        "--recompute: the backbone's batch normalisation",
    ),
    (
        "pretrain --method tespec --accumulate 3",
        "3 gradient accumulation steps each; use --set batch_size=6, or",
    ),
    (
        "pretrain --method cm3ae --accumulate 16",
        "batch_size: 1 per micro-batch is too small: samples are compared",
    ),
    (
        "pretrain --method moby --set batch_size=1 --dry-run",
        "batch_size: 1 per micro-batch is too small: samples are",
    ),
    (
        "run --method cm3ae --task ddd17 --set batch_size=16 --accumulate 16",
        "1 per micro-batch is too small",
    ),
    (
        "run --reference prior --task ddd17 --set test_time_augmentation=flip",
        "test_time_augmentation: 'flip' is only",
    ),
    (
        CELL + "--probe --set test_time_augmentation=flip",
        "test_time_augmentation: 'flip' is only for trained networks",
    ),
    (CELL + "--probe --dry-run", "--dry-run estimates trainings, but --probe trains no network"),
    (CELL + "--dry-run --gpus 3", "batch_size: 4 does not divide evenly among 3 processes"),
    (
        ON_DATA + "--set dataset=Foo",
        "dataset: unknown dataset 'Foo'; choose from Ddd17, Dsec, Gen1, Mvsec",
    ),
    (
        ON_DATA + "--split val --set splits.val=[]",
        "DDD17 has no val split: no recordings are listed",
    ),
    (
        "pretrain --method scratch",
        "method scratch: has no pre-training recipe; choose from cm3ae, cpc",
    ),
    (
        "run --method tespec --task ddd17 --data {docs}",
        "--method tespec: needs pre-trained weights; give --checkpoint",
    ),
    (
        "run --method ecddp_resnet --task ddd17 --arch feedforward",
        "is pre-trained on E-TartanAir; give --check",
    ),
    ("run --method tespec --task ddd17 --results {docs}", "docs: is not a results folder; give "),
    (
        "run --method tespec --task ddd17 --results {davis}",
        "aedat4: cannot be written to (Not a directory); choose",
    ),
    (
        "pretrain --method tespec --results here --runs /proc/nope",
        "--runs /proc/nope: cannot be written to (",
    ),
    ("pretrain --method tespec --set width=tiny", "unknown setting 'width'"),
    (
        "pretrain --method tespec --set objective.mask.ratio=2",
        "objective.mask.ratio: 2 is not allowed",
    ),
    ("pretrain --method ecdp --set objective.teacher=5", "objective.teacher: 5 is not allowed"),
    (
        "pretrain --method ecdp --set objective.teacher=[a]",
        "objective.teacher: ['a'] is not allowed",
    ),
    (
        "pretrain --method ecdp --set objective.teacher=moby2",
        "objective.teacher 'moby2': is neither",
    ),
    ("tabels", 'Unknown command "tabels". Did you mean "tables"?'),
    ("run --result x", "Unknown option: --result. Did you mean --results?"),  # not abbreviated
    ("run --threads 1.5", "Invalid value for --threads"),
    (CELL + "--launcher torchrun", 'Choose from: "none", "pytorch", "slurm"'),
    (CELL + "--arch recurent", 'Choose from: "recurrent", "feedforward"'),
    ("data prepare dsec . --split trian", "Unknown option: --split"),
    ("data chek dsec .", 'Unknown command "chek". Did you mean "check"?'),
    (
        "data preview recordings {davis} --at 3",
        "3 s is outside of the recording; give times from 0.05 to 0.1",
    ),
    ("data preview recordings {davis} --norm-events 0", "--norm-events"),
    (
        "data preview recordings {davis} --set bins=5",
        "--set changes settings of a data set, but recordings have none;",
    ),
    ("data check dsex .", "dsex: no such file in configs/tasks; did you mean 'dsec'?"),
    ("data check dsec gone", "gone: no such file or folder; check the path"),
    ("data check gen1 . --processes 0", 'Invalid value "0" for --processes. Must be > 0'),
    (
        "data download-guide kitti",
        "kitti: no such file in configs/tasks; choose from 1mpx, ddd17, dsec, gen1, mvsec",
    ),
    ("tables --only sgmentation", "did you mean 'segmentation'"),
    ("tables --only depth segmentatoin", "did you mean 'segmentation'"),
    ("tables --where metod=tespec", "did you mean 'method'"),
    ("tables --where metric=moiu", "did you mean 'miou'"),
    ("tables --where method", "write KEY=VALUE"),
    ("tables --where frozen=False --frozen", "--where: a key is given twice"),
    ("tables --by label_frction", "did you mean 'label_fraction'"),
    ("tables --by metric", "cannot be used with --by"),
    ("tables --only ablation_steps --measured", "has no measured results"),
    ("tables --gains scrach", "did you mean 'scratch'"),
    ("tables --gains scratch --measured", "--gains and --rank cannot be combined with"),
    ("tables --gains ''", "--gains: name a method, such as scratch"),
    ("tables --rank full", "--rank full: write two evaluations, such as full,frozen"),
    ("tables --rank full,full", "--rank full,full: write two evaluations, such as full,frozen"),
    ("tables --gains scratch --where frames=moving", "over all frames; leave out --where frames"),
    (
        "tables --gains scratch --where metric=mean_class_acc",
        "over all frames; leave out --where metric",
    ),
    ("tables --results {docs}", "is not a results folder"),
    (
        "tables --results nowhere",
        "--results nowhere: no such folder; give a folder that contains runs/",
    ),
    ("weights convert {weights} out.pth", 'value "out.pth" for OUT. Allowed: .safetensors; see'),
    (
        "run --model m --predict r --out x.gif",
        '"x.gif" for --out. Allowed: .png, .jpg, .jpeg, .pdf, .svg, a folder; see --help',
    ),
    ("data preview recordings {davis} --out x.gif", "Allowed: .png, .jpg, .jpeg, .pdf, .svg, a "),
    ("data check recordings {davis} --out x.xlsx", "Allowed: .csv; see --help"),
    ("data check recordings {davis} --out {docs}", "Allowed: .csv; see --help"),
    ("report --out x.pdf", "Allowed: .html; see --help"),
    ("report --out {docs}", "Allowed: .html; see --help"),
    ("tables --out x.csv", "Allowed: a folder; see --help"),
    ("tables --out {davis}", "Allowed: a folder; see --help"),
    (ON_DATA + "--profile smoke --workers 99999", "--workers 99999: is more than 8 for each of"),
    (
        "pretrain --method tespec --data {world}/1mpx --threads 99999",
        "--threads 99999: is more than 8 for each of this machine's ",
    ),
    ("weights convert {weights} {weights}/out.safetensors", "weights.safetensors: File exists"),
    (
        "weights convert {weights} out.safetensors --bins 5",
        "takes 20 channels of representation histogram (see its recipe), but this model 10 of",
    ),
    ("weights inspect {weights} --sensor 90", "give WIDTHxHEIGHT in px"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_are_answered_in_one_line(
    call, tiny_world, tmp_path, without_data, arguments, message
):
    weights = tmp_path / "cache" / "weights.safetensors"
    if "{weights}" in arguments:
        write_weights(weights, EventSwin("swin_micro", img_size=(64, 96)).state_dict(), RECIPE)
    words = shlex.split(arguments.format(world=tiny_world, weights=weights, **FILES))
    folders = [] if {"--results", "--out"} & {*words} else PLACES.get(words[0], ())
    code, out, err = call(*words, *folders)
    assert (code, out) == (2, "")
    (error,) = err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert {path.name for path in tmp_path.iterdir()} <= ({"cache"} if "{" in arguments else set())
    assert not world_folder().exists()
