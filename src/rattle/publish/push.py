"""Upload a run to the Hugging Face hub as a repository that `rattle.load("hf:OWNER/NAME")` opens."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from rattle.errors import RattleError
from rattle.publish.folder import write_folder
from rattle.runs import hub


def push(
    run: Path | str,
    name: str,
    *,
    private: bool = False,
    revision: str | None = None,
    license: str = "unknown",
    page: bool = True,
    averaged: bool = True,
    note: Callable[[str], None] = lambda sentence: None,
) -> str:
    """Publish a run on the hub and return the address of the commit.

    run: a run folder or checkpoint. name: OWNER/NAME of the repository, created if it is missing. private: make a new
    repository private. revision: the branch to upload to, created if it is missing; main when None. license: for
    the card, such as mit. page: add report.html. averaged: prefer averaged weights. note: called with a sentence about
    each omission.

    The token comes from HF_TOKEN or the hub's login. Results and page of an earlier upload are removed.
    """
    hub.check_repository(name)
    with hub.meaningful(f"hf:{name}"):
        if not hub.package("rattle push").get_token():
            raise RattleError("there is no token for the hub: set HF_TOKEN, or log in with `hf auth login`")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        for sentence in write_folder(run, folder, name, license=license, page=page, averaged=averaged):
            note(sentence)
        with hub.meaningful(f"hf:{name}"):
            api = hub.package("rattle push").HfApi(library_name="rattle")
            api.create_repo(name, private=private or None, exist_ok=True)
            if private and not api.model_info(name).private:
                raise RattleError(f"hf:{name} exists and is public: --private is for a new repository")
            if revision:
                api.create_branch(name, branch=revision, exist_ok=True)
            commit = api.upload_folder(
                repo_id=name,
                folder_path=folder,
                revision=revision,
                commit_message="Upload by rattle push",
                delete_patterns=["results/*", "report.html"],
            )
    return str(commit.commit_url)
