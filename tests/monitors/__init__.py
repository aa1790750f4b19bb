"""Other projects' monitors beside simulated devices, with the files of `deploy/monitors` that `docs/other-monitors.md` shows."""
