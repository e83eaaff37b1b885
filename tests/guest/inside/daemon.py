"""The installer and the sandbox daemon's unit under a real systemd; run inside the guest, as root, in this order."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from pathlib import Path

from tests.guest.inside import help as h
from tests.guest.inside import sbx
from troupe_tasks.doctor import docker
from troupe_tasks.doctor.finding import Finding
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.sbx.signin import SignIn, Standing

_FILE = Path("/etc/systemd/system", sbx.UNIT)


def doctor() -> Finding:
    """Return what the user's doctor says of the unit."""
    patient = Machine.here(Paths.from_env({"HOME": str(sbx.HOME)}), patience=10)
    machine = dataclasses.replace(
        patient, user=sbx.USER, uid=1001, driver="sbx", sbx=lambda: str(sbx.PROGRAM),
        signed_in=lambda: SignIn(Standing.IN, sbx.USER), run=lambda argv: patient.run([*map(str, sbx.as_user(*argv))]),
    )  # fmt: skip
    found = docker.daemon_unit(machine)
    print(found)
    return found


def test_without_a_sign_in_the_unit_is_left_out_and_troupe_installed() -> None:
    sbx.prepare()
    done = sbx.install(sbx.release("1.0.0"))
    assert done.returncode == 0
    assert "left out: sbx is not signed in" in done.stderr
    assert sbx.installed() == "1.0.0"
    assert not _FILE.exists()
    assert sbx.visits_to_root() == 0


def test_a_daemon_outside_its_unit_is_refused_and_the_troupe_of_before_stays() -> None:
    sbx.sign_in()
    with subprocess.Popen(sbx.as_user(sbx.PROGRAM, "daemon", "start")) as outside:
        try:
            h.until(sbx.answers)
            done = sbx.install(sbx.release("1.1.0"))
        finally:
            os.kill(int((sbx.STATE / "answers").read_text()), signal.SIGTERM)
        outside.wait(timeout=60)
    assert done.returncode == 3
    assert "a sandbox daemon runs outside its unit" in done.stderr
    assert sbx.installed() == "1.0.0"
    assert not _FILE.exists()
    assert sbx.visits_to_root() == 0


def test_the_unit_is_installed_by_one_visit_to_root_and_answers_once_it_is_up() -> None:
    (sbx.STATE / "slow").touch()
    done = sbx.install(Path("/srv/1.1.0"))
    assert done.returncode == 0
    assert sbx.answers()
    assert (sbx.fact("ActiveState"), sbx.fact("UnitFileState")) == ("active", "enabled")
    assert sbx.visits_to_root() == 1
    assert sbx.installed() == "1.1.0"
    assert (sbx.STATE / "starts").read_text().splitlines() == [sbx.USER, sbx.USER]
    assert (sbx.STATE / "policy").read_text() == "balanced\n"
    assert doctor().verdict == "ok"
    (sbx.STATE / "slow").unlink()


def test_a_second_run_needs_no_root_and_leaves_daemon_and_policy_alone() -> None:
    before = sbx.fact("MainPID")
    assert sbx.install(Path("/srv/1.1.0")).returncode == 0
    assert (sbx.fact("MainPID"), sbx.visits_to_root()) == (before, 1)
    assert (sbx.STATE / "policy").read_text() == "balanced\n"


def test_an_older_unit_is_replaced_and_the_daemon_goes_on() -> None:
    before = sbx.fact("MainPID")
    _FILE.write_text(_FILE.read_text(encoding="utf-8") + "# older\n", encoding="utf-8")
    done = sbx.install(Path("/srv/1.1.0"))
    assert done.returncode == 0
    assert f"sudo systemctl restart {sbx.UNIT}" in done.stderr
    assert (sbx.fact("MainPID"), sbx.visits_to_root()) == (before, 2)
    assert _FILE.read_text(encoding="utf-8") == Path("/opt/troupe/units", sbx.UNIT).read_text(
        encoding="utf-8"
    )


def test_it_verifies_and_what_it_exposes() -> None:
    found = subprocess.run(
        ["systemd-analyze", "verify", sbx.UNIT], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")
    argv = ["systemd-analyze", "security", "--no-pager", sbx.UNIT]
    print(subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip().splitlines()[-1])


def test_a_killed_daemon_comes_back_and_answers() -> None:
    before = int(sbx.fact("MainPID"))
    os.kill(before, signal.SIGKILL)
    h.until(lambda: sbx.fact("ActiveState") == "active" and sbx.fact("MainPID") not in {"0", str(before)})
    assert sbx.answers()


def test_a_stopped_daemon_stays_stopped_and_starts_again() -> None:
    subprocess.run(["systemctl", "stop", sbx.UNIT], check=True)
    assert not sbx.answers()
    assert sbx.fact("ActiveState") == "inactive"
    assert sbx.fact("Result") == "success"
    assert "not started" in doctor().detail
    subprocess.run(["systemctl", "start", sbx.UNIT], check=True)
    assert sbx.answers()


def test_no_question_of_troupes_starts_one_outside_its_unit() -> None:
    subprocess.run(["systemctl", "stop", sbx.UNIT], check=True)
    refused = sbx.listing()
    assert "the sandbox daemon does not run" in refused.stderr
    assert not sbx.answers()
    subprocess.run(["systemctl", "start", sbx.UNIT], check=True)
    assert sbx.listing().stdout == "0\n"
    assert (sbx.STATE / "answers").read_text().strip() == sbx.fact("MainPID")


def test_one_that_keeps_ending_is_failed_and_doctor_says_since_when() -> None:
    (sbx.STATE / "broken").touch()
    os.kill(int(sbx.fact("MainPID")), signal.SIGKILL)
    h.until(lambda: sbx.fact("ActiveState") == "failed", deadline_s=240)
    found = doctor()
    assert found.detail.startswith("failed since ")
    assert sbx.fact("StateChangeTimestamp") in found.detail
    assert f"sudo systemctl restart {sbx.UNIT}" in found.todo
    (sbx.STATE / "broken").unlink()


def test_the_installer_starts_a_failed_one_again() -> None:
    assert sbx.install(Path("/srv/1.1.0")).returncode == 0
    assert sbx.answers()
    assert doctor().verdict == "ok"


def test_a_broken_one_ends_the_installation_and_the_troupe_of_before_stays() -> None:
    subprocess.run(["systemctl", "stop", sbx.UNIT], check=True)
    (sbx.STATE / "broken").touch()
    done = sbx.install(sbx.release("1.2.0"))
    assert done.returncode == 5
    assert "the troupe of before is as it was" in done.stderr
    assert sbx.installed() == "1.1.0"
    (sbx.STATE / "broken").unlink()
    assert sbx.install(Path("/srv/1.2.0")).returncode == 0
    assert (sbx.installed(), sbx.answers()) == ("1.2.0", True)
