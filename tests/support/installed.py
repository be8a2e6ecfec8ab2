"""Try a wheel and an sdist as a stranger meets them: in an environment of their own, in a folder with no sources near.

`make test-wheel` builds both and runs this file with the Python it is given; only the standard library is needed.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
IN_SDIST = [
    "hubconf.py",
    "LICENSE",
    "README.md",
    "CITATION.cff",
    "Makefile",
    "constraints.txt",
    "tests/conftest.py",
    ".github/workflows/test.yml",
]
ZOO = "zoo:digits-linf-cnn-trades-2nd"
RECIPE = "digits-linf-cnn-trades-2nd"
COMMANDS = [
    "rattle --version",
    "python -m rattle --version",
    "rattle demo --help",
    "rattle doctor",
    "rattle recipes --zoo",
    f"rattle train {RECIPE} --epochs 1 --data.train-size 200 --out runs/a",
    "rattle evaluate runs/a --attacks pgd20 --n 50",
    f"rattle evaluate {ZOO} --attacks pgd20 --n 50",
    "rattle report runs/a --out report.html",
    "rattle table runs/a --format latex",
    "rattle push runs/a me/digits --to published",
]
PYTHON = f"""
import json, pathlib, sys, torch, rattle
assert pathlib.Path(rattle.__file__).is_relative_to(sys.prefix), rattle.__file__
assert rattle.load({ZOO!r})(torch.rand(2, 1, 8, 8)).shape == (2, 10)
assert rattle.load("runs/a")(torch.rand(2, 1, 8, 8)).shape == (2, 10)
print(json.dumps({{"version": rattle.__version__, "python": sys.version.split()[0], "torch": torch.__version__}}))
"""
HUB = f"""
import sys, torch
print(tuple(torch.hub.load(sys.argv[1], "rattle_model", {ZOO!r}, source="local")(torch.rand(2, 1, 8, 8)).shape))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path, help="folder with one wheel and one sdist")
    parser.add_argument("--env", type=Path, help="environment to make or to use again; a temporary one if not given")
    parser.add_argument(
        "--constraints", type=Path, default=ROOT / "constraints.txt", help="`none`: the newest versions"
    )
    options = parser.parse_args()
    (wheel,), (sdist,) = (list(options.dist.resolve().glob(kind)) for kind in ("*.whl", "*.tar.gz"))
    check_contents(wheel, sdist)
    with tempfile.TemporaryDirectory(prefix="rattle-installed-") as scratch:
        place = Path(scratch) / "elsewhere"
        place.mkdir()
        env = (options.env or Path(scratch) / "env").resolve()
        install(wheel, env, options.constraints)
        told = try_commands(place, env)
        assert told["version"] == wheel.name.split("-")[1], f"{wheel.name} calls itself {told['version']}"
        check_records(place, told["version"])
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        run([env / "bin" / "python", "-c", HUB, Path(scratch) / sdist.name.removesuffix(".tar.gz")], place)
    print(f"{wheel.name} works on Python {told['python']} with torch {told['torch']}")


def check_contents(wheel: Path, sdist: Path) -> None:
    """Every file of the package is in both, and what a distributor needs is in the sdist."""
    source = ROOT / "src"
    package = {
        path.relative_to(source).as_posix()
        for path in (source / "rattle").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == package, f"not the package's files: {sorted(held ^ package)}"
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = {f"src/{name}" for name in package} | {*IN_SDIST}
    assert missing <= names, f"the sdist lacks {sorted(missing - names)}"
    print(f"{wheel.name}: {len(held)} files, {wheel.stat().st_size / 1e6:.1f} MB; {sdist.name}: {len(names)} files")


def install(wheel: Path, env: Path, constraints: Path) -> None:
    """torch first, by its exact pin if there is one, so that no other package's range can pull another build."""
    if not (env / "bin" / "python").exists():
        venv.create(env, with_pip=True)
    pip = [env / "bin" / "python", "-m", "pip", "install", "--quiet"]
    if constraints.name != "none":
        pip += ["--constraint", constraints.resolve()]
        lines = constraints.read_text(encoding="utf-8").splitlines()
        run([*pip, *(line for line in lines if line.startswith("torch=="))], env)
    run([*pip, "--force-reinstall", "--no-deps", wheel], env)  # this build, not an older one of the same version
    run([*pip, wheel], env)
    run([env / "bin" / "python", "-m", "pip", "check"], env)


def try_commands(place: Path, env: Path) -> dict[str, str]:
    for command in COMMANDS:
        program, *words = command.split()
        run([env / "bin" / program, *words], place)
    page = (place / "report.html").read_text(encoding="utf-8")
    assert "https://" not in page.partition("<body")[0], "the page's head fetches something"
    return json.loads(run([env / "bin" / "python", "-c", PYTHON], place))


def check_records(place: Path, version: str) -> None:
    """The run, the page, and what was published of it say which version made them."""
    ran, config = (
        json.loads((place / name).read_text(encoding="utf-8"))["rattle"]
        for name in ("runs/a/environment.json", "published/config.json")
    )
    assert {ran, config} == {version}, f"recorded as {ran} in the run, {config} in what was published of it"
    for name in ("published/README.md", "report.html"):
        assert version in (place / name).read_text(encoding="utf-8"), f"{name} does not name the version"


def run(command: list[str | Path], folder: Path) -> str:
    """What a command prints; its failure ends everything, with what it said."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    start = time.perf_counter()
    done = subprocess.run([*map(str, command)], cwd=folder, env=clean, capture_output=True, text=True, timeout=3600)
    words = " ".join(Path(word).name if Path(word).is_absolute() else word.strip() for word in map(str, command))
    print(f"{time.perf_counter() - start:6.1f} s  {words.splitlines()[0]}", flush=True)
    if done.returncode:
        sys.exit(f"failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
