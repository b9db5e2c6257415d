"""The keeper must start on nothing but the standard library, and the model must have no effects."""

import subprocess
import sys

import pytest

KEEPER_MODULES = ["mountspec", "mountinfo", "errors", "names", "sub_path"]
PROBE = """
import sys
import sidemount.model.{module}
third = {{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names) - {{"sidemount", "__main__"}}
print(",".join(sorted(third)))
"""


@pytest.mark.parametrize("module", KEEPER_MODULES)
def test_the_keepers_modules_need_only_the_standard_library(module: str) -> None:
    # -S: no site-packages, so that nothing else is imported at start.
    ran = subprocess.run(
        [sys.executable, "-S", "-c", PROBE.format(module=module)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ran.stdout.strip() == ""
