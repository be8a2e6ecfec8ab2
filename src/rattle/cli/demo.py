"""rattle demo: the whole path on the embedded digits, in about two minutes."""

from dataclasses import dataclass, replace
from pathlib import Path

from rattle.cli.console import Console, print_table, say
from rattle.cli.options import parse

METHODS = {"trades": "TRADES", "trades-2nd": "TRADES + 1st + 2nd"}


@dataclass(frozen=True)
class Options:
    """Train TRADES and TRADES + first- and second-order Taylor terms on 8x8 digits from one seed, and compare them."""

    out: str = "runs/demo"  # folder for the two runs; an earlier demo there is replaced
    seed: int = 0
    epochs: int = 20  # of each run; the recipes' own 30 give a little more accuracy


def main(args: list[str]) -> None:
    options = parse(Options, args, "demo")
    from rattle.cli.report import report
    from rattle.evaluation.evaluate import evaluate
    from rattle.evaluation.target import target_from_checkpoint
    from rattle.recipes.catalog import get_recipe
    from rattle.report.compare import compare_runs
    from rattle.report.run_data import load_runs
    from rattle.report.tables import accuracy_row
    from rattle.training.loop import fit

    console, rows, folders, title = Console(), [], [], ""
    for method, label in METHODS.items():
        recipe = replace(get_recipe(f"digits-linf-cnn-{method}"), seed=options.seed, epochs=options.epochs)
        threat = recipe.attack.threat
        console.log(f"{label}: training {recipe.epochs} epochs on {recipe.data.name}")
        run = fit(recipe, Path(options.out) / method, overwrite=True, console=console)
        target = target_from_checkpoint(str(run.folder))
        images = target.images()
        where = {"out": run.results, "metadata": target.metadata | {"seed": options.seed}, "console": console}
        result = evaluate(
            target.model, images.x, images.y, ["pgd20", "cw20"], threat=threat, seed=options.seed, **where
        )
        rows.append(accuracy_row(label, result))
        folders.append(run.folder)
        title = f"digits 8x8, {threat.norm} epsilon {threat.epsilon:g}, {result.n} test images: % [95 % interval]"
    print_table(["method", "clean", "PGD-20", "CW-20"], rows, title=title)
    for test in compare_runs(load_runs(folders))[0]:
        say(test.sentence)
    print("(paired tests on the same images, Holm-adjusted; one seed each: two networks, not two methods)\n")
    print("The runs (recipe, metrics, TensorBoard events, checkpoints, results):")
    say("\n".join(f"  {folder}" for folder in folders))
    page = report(folders, Path(options.out) / "report.html", console=console)
    say(f"\nThe page to look at: {page.resolve()}")
    print("\nWhat to try next:")
    say(f"  rattle evaluate {folders[1]} --attacks autoattack --n 200")
    print("  rattle train digits-linf-cnn-trades-awp-2nd --objective.taylor.eta 0.3 --epochs 10 --out runs/awp")
    print("  rattle recipes")
