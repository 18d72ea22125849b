"""How many instructions one forward pass takes: a guard of its speed that a busy machine cannot shake.

Valgrind counts them, inside `sky_forward` only, in the extension as it is installed. It has no AVX-512, so AVX2 stands
for every instruction set. The count is the same in every run and differs a little between compilers.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import SIZES, paint
from programs import need

from skyinfer.core import border

EXAMPLES = Path(__file__).parents[1] / "examples"

# The three drone questions on a painted checkpoint of the pico size, in s1 200 tokens: millions of instructions with
# gcc 12. To record another figure, write the one that the failure names here, and say in the commit what changed it.
RECORDED = {("s1", "exact"): 9.96, ("s1", "int8"): 9.53, ("s2", "exact"): 0.95}
TOLERANCE = 0.05

ONE_FORWARD_PASS = """
import json, pathlib, sys
import skyinfer

request = json.loads(pathlib.Path(sys.argv[1]).read_text("utf-8"))
model = skyinfer.load(sys.argv[2], threads=1, precision=sys.argv[3])
assert model.isa == "avx2"
model.logits(request["state"], request["questions"])
"""


@pytest.mark.skipif((platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="counts AVX2 instructions")
@pytest.mark.skipif(not border.isa_supported("avx2"), reason="this CPU has no avx2")
@pytest.mark.parametrize(("architecture", "precision"), RECORDED)
def test_a_forward_pass_takes_as_many_instructions_as_recorded(
    tmp_path: Path, architecture: str, precision: str
) -> None:
    need("valgrind")
    recorded = RECORDED[architecture, precision]
    painted = EXAMPLES / "painted"
    if architecture == "s2":
        painted = paint(tmp_path / "painted", **SIZES["pico"], architecture="s2", temperature_by_options={})
    tool = [
        "valgrind",
        "--tool=callgrind",
        "--toggle-collect=sky_forward",
        f"--callgrind-out-file={tmp_path / 'counts'}",
    ]
    run = subprocess.run(
        [*tool, sys.executable, "-c", ONE_FORWARD_PASS, str(EXAMPLES / "request.json"), str(painted), precision],
        env=os.environ | {"SKYINFER_ISA": "avx2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (collected,) = re.findall(r"Collected : (\d+)", run.stderr)
    millions = int(collected) / 1e6
    assert millions == pytest.approx(recorded, rel=TOLERANCE), (
        f"a forward pass took {millions:.2f} million instructions, {millions / recorded - 1:+.1%} from the recorded"
        f" {recorded}. If that is meant, record it: {architecture, precision}: {millions:.2f} in {Path(__file__).name}"
    )
