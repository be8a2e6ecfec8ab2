"""rattle completion: a script that completes commands, options, recipes, attacks and run folders in a shell."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rattle.cli import names
from rattle.cli.early import TRAINS
from rattle.cli.main import COMMANDS
from rattle.cli.options import parse

BASH = """# Completion of rattle; put into ~/.bashrc: eval "$(rattle completion bash)"
_rattle() {
  local cur="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" option="" words="" runs="" i file
  COMPREPLY=()
  for (( i = COMP_CWORD - 1; i > 1; i-- )); do
    if [[ "${COMP_WORDS[i]}" == --* ]]; then option="${COMP_WORDS[i]}"; break; fi
  done
  if (( COMP_CWORD == 1 )); then
    words="@commands@"
  elif [[ "$cur" == -* ]]; then
    case "$command" in
@options@
    esac
  elif [[ -n "$option" ]]; then
    case "$option" in
@values@
    esac
  else
    case "$command" in
@firsts@
    esac
    runs=yes
  fi
  COMPREPLY=( $(compgen -W "$words" -- "$cur") )
  if [[ -n "$runs" ]]; then
    for file in "$cur"*/recipe.yaml "$cur"*/*/recipe.yaml; do
      if [[ -e "$file" ]]; then COMPREPLY+=( "$(printf %q "${file%/recipe.yaml}")" ); fi
    done
  fi
}
complete -o default -F _rattle rattle
"""
ZSH = """#compdef rattle
# Put into ~/.zshrc: eval "$(rattle completion zsh)"
(( $+functions[compdef] )) || { autoload -U +X compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
"""
FISH = """# Completion of rattle: rattle completion fish > ~/.config/fish/completions/rattle.fish
function __rattle_is  # the command, which may also be the name of a folder later in the line
  set -l words (commandline -opc)
  test "$words[2]" = "$argv[1]"
end
function __rattle_after  # the last option
  set -l options (string match -- "--*" (commandline -opc))
  test "$options[-1]" = "$argv[1]"
end
"""
RUNS = "(for file in */recipe.yaml */*/recipe.yaml; string replace /recipe.yaml '' $file; end)"


@dataclass(frozen=True)
class Options:
    """Print a script that completes rattle's commands, options, recipes, attacks and run folders. Put
    eval "$(rattle completion bash)" into ~/.bashrc, the same with zsh into ~/.zshrc; for fish write it to
    ~/.config/fish/completions/rattle.fish."""

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]  # the shell you use


def main(args: list[str]) -> None:
    shell = parse(Options, args, "completion").shell
    print(fish() if shell == "fish" else (ZSH if shell == "zsh" else "") + bash(), end="")


def options_of(command: str) -> list[str]:
    """A command's options, as far as the source tells them."""
    modules = ["sweep", "train"] if command == "sweep" else [command]
    classes = ["Get", "Show"] if command == "data" else ["Options"]
    found = [option for module in modules for name in classes for option in names.options(f"rattle.cli.{module}", name)]
    if command == "train":
        found += [f"--{name}" for name in names.keys("rattle.cli.custom", "OWN")]
    return list(dict.fromkeys([*(option for option in found if not option.endswith("*")), "--help"]))


def values() -> dict[str, list[str]]:
    """The names that an option takes."""
    datasets, models = names.keys("rattle.data.registry", "SOURCES"), names.keys("rattle.models.registry", "BUILDERS")
    return {"--attacks": names.attacks(), "--model": models, "--data": datasets, "--data.name": datasets}


def firsts() -> dict[str, list[str]]:
    """The names that may follow a command, besides run folders."""
    shells, listed = ["bash", "zsh", "fish"], names.recipes()
    return dict.fromkeys((*TRAINS, "recipes"), listed) | {"completion": shells, "data": ["get", "show"]}


def bash() -> str:
    """The script for bash; zsh runs it too."""

    def cases(words: dict[str, list[str]]) -> str:
        return "\n".join(f"""      {name}) words="{" ".join(each)}" ;;""" for name, each in words.items())

    parts = {"commands": " ".join(COMMANDS), "values": cases(values()), "firsts": cases(firsts())}
    parts["options"] = cases({command: options_of(command) for command in COMMANDS})
    script = BASH
    for part, text in parts.items():
        script = script.replace(f"@{part}@", text)
    return script


def fish() -> str:
    lines = [
        f"complete -c rattle -n __fish_use_subcommand -f -a {name} -d {about!r}" for name, about in COMMANDS.items()
    ]
    lines.append(f"complete -c rattle -n '__rattle_after --attacks' -f -a '{' '.join(names.attacks())}'")  # any number
    for command in COMMANDS:
        after = f"complete -c rattle -n '__rattle_is {command}'"
        lines.append(f'{after} -a "{" ".join(firsts().get(command, []))} {RUNS}"'.replace("$", "\\$"))
        for option in options_of(command):
            words = values().get(option)
            lines.append(f"{after} -l {option.removeprefix('--')}" + (f" -x -a '{' '.join(words)}'" if words else ""))
    return FISH + "\n".join(lines) + "\n"
