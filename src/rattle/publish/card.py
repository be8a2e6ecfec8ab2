"""The model card: README.md of a published model, with the front matter that the Hugging Face hub reads. No torch."""

from collections.abc import Sequence

import yaml

from rattle.evaluation.results import Results, StoredResult
from rattle.recipes.schema import flatten
from rattle.report.naming import method_of, threat_text, title_of, value_text
from rattle.report.tables import accuracy, percent, sorted_attacks
from rattle.report.writers import escape_markdown, markdown_table
from rattle.runs.io import Plain

# The hub's names of the datasets that have one.
HUB_DATASETS = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "svhn": "ufldl-stanford/svhn",
    "mnist": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
}
LIMITS = """\
- Robust accuracy is an upper bound: it is what these attacks left, and a stronger one may leave less. Intervals are
  Wilson 95 % intervals over the images; they do not contain the variation over training seeds.
- It holds for {threat} and for images like those of `{data}`; nothing is promised for other norms, larger radii,
  corruptions or other data.
- The model takes images in [0, 1], not normalised: any normalisation is inside it."""


def model_card(name: str, config: Plain, results: Results, *, license: str, has_page: bool = False) -> str:
    """The text of README.md.

    name: OWNER/NAME on the hub. config: the object in config.json. results: by attack, of these weights. license: an
    identifier of the hub's, such as mit. has_page: whether report.html lies beside it.
    """
    recipe = config["recipe"]
    plain = yaml.safe_dump(front_matter(name, config, results, license), sort_keys=False, allow_unicode=True)
    method, data = method_of(recipe), recipe["data"]["name"]
    extra = f" and extra images, `{recipe['data']['extra']}`," if recipe["data"].get("extra") else ""
    width = f", width {recipe['width']}" if recipe["width"] else ""
    parts = [
        f"---\n{plain}---\n",
        f"# {escape_markdown(name.rpartition('/')[2])}\n",
        f"`{recipe['model']}`{width}, trained on `{data}`{extra} by {escape_markdown(method)} "
        f"to resist adversarial examples ({threat_text(recipe)}) "
        f"with RATTLE {config['rattle']} (Jin et al., CVPR 2023), seed {recipe['seed']}.\n",
        f"## Results\n\n{results_text(name, results)}",
        f"## Use\n\n{use_text(name, config, results)}",
        f"## Limits\n\n{LIMITS.format(threat=threat_text(recipe), data=data)}\n",
        f"## Recipe\n\nEvery setting, as in recipe.yaml:\n\n```yaml\n{yaml.safe_dump(recipe, sort_keys=False)}```\n",
    ]
    if has_page:
        parts.insert(3, "report.html is one page of curves, tables and pictures of this run; it works offline.\n")
    return "\n".join(parts)


def results_text(name: str, results: Results) -> str:
    if not results:
        return f"Not evaluated yet; `rattle evaluate hf:{name} --attacks pgd20 cw20 autoattack` does it.\n"
    rows, clean = [], ()
    for attack in sorted_attacks(results):
        found = results[attack]
        n = str(len(found.flags))
        if found.clean != clean:  # attacks on other images have another clean accuracy
            clean = found.clean
            rows.append(["Clean", percent(clean, found.clean_error), n, found.data, ""])
        rows.append([title_of(attack), percent(found.flags, found.error), n, found.data, attack_text(found)])
    table = markdown_table(["Attack", "Accuracy, % [95 % interval]", "n", "Images", "Settings"], rows, left=1)
    return f"{table}\nresults/ATTACK.json says which n test images these are, and has a flag for each.\n"


def attack_text(result: StoredResult) -> str:
    """The settings of an attack in a line; those of an ensemble's parts are in its result file."""
    settings = {name: value for name, value in result.settings.items() if name not in ("kind", "components")}
    words = [f"{name.removeprefix('threat.')} {value_text(value)}" for name, value in flatten(settings).items()]
    parts = result.settings.get("components")
    texts = [str(result.settings.get("kind", "")), ", ".join(words)]
    return "; ".join([*texts, ", ".join(parts)] if isinstance(parts, dict) else texts)


def use_text(name: str, config: Plain, results: Results) -> str:
    size, threat = f"(4, {', '.join(map(str, config['shape']))})", config["recipe"]["attack"]["threat"]
    attacks = " ".join(a for a in sorted_attacks(results) if not a.startswith("transfer-"))
    sizes = {len(result.flags) for result in results.values()}
    first = f" --n {sizes.pop()}" if len(sizes) == 1 else ""
    return f"""\
```bash
pip install "rattle-robust[hub]"
rattle evaluate hf:{name} --attacks {attacks or "pgd20 cw20 autoattack"}{first}   # measures it again
rattle train recipe.yaml --out runs/again   # trains it again
```

```python
import rattle
import torch

model = rattle.load("hf:{name}")  # executes nothing that is downloaded
logits = model(torch.rand{size})  # images in [0, 1] -> [4, {len(config["classes"])}]
x_adv = rattle.get_attack("pgd20", rattle.Threat(norm="{threat["norm"]}", epsilon={threat["epsilon"]}))(
    model, torch.rand{size}, logits.argmax(1)
)
```
"""


def front_matter(name: str, config: Plain, results: Results, license: str) -> Plain:
    """What the hub reads: licence, tags, datasets, and a model-index of the measured accuracies."""
    recipe = config["recipe"]
    data = recipe["data"]["name"]
    dataset = data.removeprefix("hub:").partition(":")[0] if data.startswith("hub:") else HUB_DATASETS.get(data)
    matter: Plain = {
        "license": license,
        "library_name": "rattle",
        "pipeline_tag": "image-classification",
        "tags": ["adversarial-robustness", "adversarial-training", "rattle", recipe["attack"]["threat"]["norm"]],
        "datasets": [dataset] if dataset else [],
        "metrics": ["accuracy"],
    }
    if results:
        index = {"name": name.rpartition("/")[2], "results": [measured(dataset or data, results)]}
        matter["model-index"] = [index]
    return {key: value for key, value in matter.items() if value}


def measured(dataset: str, results: Results) -> Plain:
    """The accuracies of a model-index, as fractions; clean of AutoAttack's images when there is one."""
    ordered = [results[attack] for attack in sorted_attacks(results)]
    last = ordered[-1]
    metrics = [metric("clean accuracy", last.clean, last.clean_error)]
    metrics += [metric(f"robust accuracy, {title_of(found.attack)}", found.flags, found.error) for found in ordered]
    return {
        "task": {"type": "image-classification", "name": "Image classification under attack"},
        "dataset": {"type": dataset, "name": last.data or dataset, "split": "test"},
        "metrics": metrics,
    }


def metric(name: str, flags: Sequence[float], error: float) -> Plain:
    found = accuracy(flags, error)
    value, low, high = (round(share / 100, 4) for share in (found.value, found.low, found.high))
    return {"type": "accuracy", "name": name, "value": value, "args": {"n": len(flags), "low": low, "high": high}}
