"""What a record says of how several processes were started."""

import pytest

from tespec.cli.command import Parser
from tespec.cli.options import add_run_options
from tespec.training.launch import LAUNCHERS, starting


@pytest.mark.parametrize(
    ("launcher", "environment", "begins"),
    [
        ("pytorch", {"LOCAL_WORLD_SIZE": "4"}, "torchrun --nproc-per-node 4"),
        ("pytorch", {"GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"}, "torchrun --nnodes 2 --nproc-per-node 4"),
        ("slurm", {"SLURM_NTASKS": "8"}, "srun --ntasks 8 python"),
        ("mpi", {}, "mpirun -n 1 python"),
    ],
)
def test_a_command_starts_as_many_processes_as_there_were(launcher, environment, begins):
    assert starting(launcher, environment) == begins.split()


def test_every_launcher_can_be_chosen():
    parser = Parser()
    add_run_options(parser)
    for name in ("none", *LAUNCHERS):
        assert parser.parse_args(["--launcher", name]).launcher == name
