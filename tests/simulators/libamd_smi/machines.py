"""What the library answers for some machines."""

from collections.abc import Mapping

from tests.simulators.libamd_smi import bdf

GIB = 2**30


def mi300x(address: str = "0000:05:00.0") -> Mapping[str, float]:
    """One accelerator, of which the library knows everything that it can; watts of its limit in ROCm 6.0, microwatts later."""
    answers = {
        **{"bdf.number": bdf(address), "activity.gfx": 93, "activity.umc": 58, "power.current_socket_power": 613},
        **{"cap.power_cap": 750000000, "temperature.1": 59, "temperature.2": 46, "sclk.clk": 2101, "sclk.max_clk": 2103},
        **{
            "mclk.clk": 1301,
            "mclk.max_clk": 1302,
            "energy.counter": 65536 * 9000,
            "ecc.blocks": 0x5,
            "ecc.correctable": 17,
            "ecc.uncorrectable": 2,
        },
        **{"pcie.width": 16, "pcie.max_width": 16, "pcie.speed": 32000, "pcie.max_speed": 32000, "pcie.replays": 6},
        **{"vram.used": 31 * GIB, "vram.total": 192 * GIB, "fan.speed": 51, "fan.max": 255},
        **{"asic.serial_high": 0x18EF14E9, "asic.serial_low": 0xDEC61D7E, "temperature.1.5": 100, "temperature.1.7": 105},
        **{"power.power_limit": 750000000, "replays.count": 6, "ecc.blocks": 0x5},
    }
    return {"cards": 1, **{f"0.{name}": value for name, value in answers.items()}}
