"""What third parties import from the kit."""

import subprocess
import sys

from accelmetrics.backends import kit


def test_every_public_name_is_there_and_every_home_is_public() -> None:
    assert sorted(kit.__all__) == sorted(kit._HOMES)
    assert all(hasattr(kit, name) for name in kit.__all__)


def test_detection_loads_neither_commands_nor_the_catalogue() -> None:
    code = (
        "import sys; import accelmetrics.backends.kit.system;"
        "print(*sorted({'subprocess', 'accelmetrics.backends.kit.polled', 'accelmetrics.schemas.catalogue'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
