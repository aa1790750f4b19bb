"""Which devices Slurm gave a job, and the files that say so: what is written, and what of them is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from accelmetrics.visibility.slurm_jobs import LARGEST_FILE, Job, dcgm_source, job_of, job_source, job_text, parse_job, read_jobs

FIRST, SECOND = "GPU-18ef2d05-33ca-4c1f-9f0b-6e1f4a3b2c1d", "GPU-5ad4d6c1-8a2b-4b7e-9c55-0a1b2c3d4e5f"
INSTANCE = "MIG-6c4fd5a8-6ac3-5a2d-8a39-4a6b3a7f6f41"


def test_outside_of_slurm() -> None:
    """There is no job, or what is called one would be a path."""
    for job_id in ("../../etc/passwd", "1 2", "x" * 65):
        with pytest.raises(ValueError, match=r"SLURM_JOB_ID is '.*', not a job id"):
            job_of({"SLURM_JOB_ID": job_id}, 1.0)
    with pytest.raises(ValueError, match="SLURM_JOB_ID is not set"):
        job_of({}, 1.0)


def test_what_is_written_is_read_back() -> None:
    """With and without an end; labels in any script, cut to a bounded length."""
    environment = {"SLURM_JOB_ID": "7_3", "SLURM_JOB_USER": 'añ"a\n', "SLURM_JOB_PARTITION": "x" * 500, "CUDA_VISIBLE_DEVICES": FIRST}
    job = job_of(environment, 1_700_000_000.5)
    assert job.labels == {"user": 'añ"a\n', "partition": "x" * 128}
    assert parse_job(job_text(job)) == job
    ended = job._replace(ended=1_700_000_100.0)
    assert parse_job(job_text(ended)) == ended
    assert job.claim[1]["scheduler"] == "slurm"


JOB = Job("42", "slurm", {"user": "ada"}, (("uuid", FIRST),), 1.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "does not describe a job"),
        ({"job_id": "../x"}, "job_id or scheduler"),
        ({"scheduler": 3}, "job_id or scheduler"),
        ({"began": True}, "began or ended"),
        ({"began": 0}, "began or ended"),
        ({"ended": "now"}, "began or ended"),
        ({"labels": []}, "labels"),
        ({"devices": {}}, "devices"),
        ({"devices": [{"uuid": "GPU-1"}] * 1025}, "devices"),
        ({"devices": [{"uuid": "x"}]}, "is not a device"),
        ({"devices": ["GPU-1"]}, "is not a device"),
        ({"devices": [{"minor": 3}]}, "is not a device"),
    ],
)
def test_nonsense_is_no_job(change: dict[str, object], said: str) -> None:
    """The error says what is wrong."""
    with pytest.raises(ValueError, match=said):
        parse_job(json.dumps({**json.loads(job_text(JOB)), **change}))


@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(json.dumps)
)
def test_any_text_is_a_job_or_refused(text: str) -> None:
    """Nothing else is thrown."""
    try:
        found = parse_job(text)
    except ValueError:
        return
    assert found.job_id


def test_only_files_of_root_and_of_this_user_are_believed(tmp_path: Path) -> None:
    """Links, pipes, folders, files that any user may write, large ones, ones under another name: each is told and costs itself alone."""
    good = tmp_path / "42.json"
    good.write_text(job_text(JOB))
    (tmp_path / "1.json").symlink_to(good)
    os.mkfifo(tmp_path / "2.json")
    (tmp_path / "3.json").mkdir()
    (tmp_path / "4.json").write_text(job_text(JOB._replace(job_id="4")))
    (tmp_path / "4.json").chmod(0o666)
    (tmp_path / "5.json").write_text(" " * (LARGEST_FILE + 1))
    (tmp_path / "6.json").write_text(job_text(JOB))
    (tmp_path / "7.json").write_bytes(b"\xff")
    (tmp_path / "8.json").write_text("[" * 50_000)
    (tmp_path / ".9.json.new").write_text("not whole")
    problems: list[str] = []
    assert read_jobs(str(tmp_path), problems) == [JOB]
    assert [problem.partition(" is skipped")[0].rpartition("/")[2] for problem in problems] == [f"{number}.json" for number in range(1, 9)]


@pytest.mark.skipif(os.geteuid() != 0, reason="platform: gives a file to another user")
def test_a_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    """It would put its words on everyone's dashboards."""
    (tmp_path / "42.json").write_text(job_text(JOB))
    os.chown(tmp_path / "42.json", 12345, 12345)
    problems: list[str] = []
    assert read_jobs(str(tmp_path), problems) == []
    assert "user 12345" in problems[0]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """It has no jobs, and the machine perhaps no Slurm; one that is no folder is a failure."""
    source = job_source(str(tmp_path / "jobs"))
    assert source.read() is None
    (tmp_path / "jobs").mkdir()
    assert source.read() == ((), ())
    (tmp_path / "jobs").rmdir()
    (tmp_path / "jobs").write_text("")
    with pytest.raises(NotADirectoryError):
        source.read()


def test_jobs_that_have_ended_hold_nothing(tmp_path: Path) -> None:
    """They are still there for their Epilog, and are shown to what follows the jobs."""
    (tmp_path / "42.json").write_text(job_text(JOB._replace(ended=2.0)))
    seen: list[Job] = []
    listing = job_source(str(tmp_path), seen.extend).read()
    assert listing is not None and listing[0] == ()
    assert [job.job_id for job in seen] == ["42"]


def test_the_folder_of_dcgms_exporter(tmp_path: Path) -> None:
    """A file a GPU by the driver's number, `2.1` for a GPU instance; a job a line; what is none is told, by file."""
    (tmp_path / "0").write_text("7\n\n8\n7\n")
    (tmp_path / "2.1").write_text("9")
    (tmp_path / "1").write_text("")
    (tmp_path / "3").write_text('x"} 1\n')
    (tmp_path / "README").write_text("10")
    listing = dcgm_source(str(tmp_path)).read()
    assert listing is not None
    assert [(labels["job_id"], devices) for _, labels, devices in listing[0]] == [
        ("7", (("index", "0"),)),
        ("8", (("index", "0"),)),
        ("9", (("index", "2.1"),)),
    ]
    (problem,) = listing[1]
    assert f"{tmp_path}/3 is skipped" in problem
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        dcgm_source(str(tmp_path / "none")).read()
