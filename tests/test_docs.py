"""What the guides show works."""

import subprocess
import sys

from tests.helpers import ROOT, SOURCE


def test_the_variant_of_the_guide_applies_and_runs(tmp_path):
    """docs/guides/variant.diff fits today's script without fuzz, and the script that it makes trains and resumes."""
    script = tmp_path / "ppo_kl.py"
    script.write_text((SOURCE / "ppo_continuous.py").read_text())
    patch = ["patch", "--fuzz=0", str(script), str(ROOT / "docs/guides/variant.diff")]
    subprocess.run(patch, check=True, capture_output=True)
    run = [sys.executable, str(script), "--runs-dir", str(tmp_path / "runs"), "--no-compile", "--eval-episodes", "1"]
    sizes = ["--env-id", "InvertedPendulum-v4", "--num-steps", "128", "--num-minibatches", "4"]
    subprocess.run([*run, *sizes, "--total-timesteps", "512"], check=True, capture_output=True)
    (run_dir,) = (tmp_path / "runs").iterdir()
    again = [*run, "--resume", str(run_dir), "--total-timesteps", "1024"]
    assert "evaluation at step 1,024" in subprocess.run(again, check=True, capture_output=True, text=True).stdout
