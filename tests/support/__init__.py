"""What tests of every room share.

- `waiting`: `wait_for` waits for a condition, `Gate` holds a call until it is released.
- `threads`: the threads of ours that began during this test.
- `programs`: Python programs in processes of their own that report how far they have come.
- `exporting`: `exporting` opens an exporter and closes it, `export` gives it records.
- `network`: ports.
- `missing`: what a machine lacks, for which tests are skipped.
- `locking`: locks between processes.
- `session`: what is made once per test run, for all of its workers together.

A clock that a test drives is `accelmetrics.testing.FakeClock`; scripted devices are `accelmetrics.testing.FakeBackend`.
"""
