"""Views: pure functions from readings and records to text, pages and pictures. No view reads a device."""
