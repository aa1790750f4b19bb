"""What people look at: pure functions from what was read to a picture. Nothing here reads a device."""
