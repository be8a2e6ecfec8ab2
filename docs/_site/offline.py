"""Whether a built site asks the network for anything: scripts, styles, fonts and pictures with an address elsewhere.

python docs/_site/offline.py build/site
"""

import re
import sys
from pathlib import Path

LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'\s>]+"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|icon|modulepreload|dns-prefetch))"
    r"[^>]*\bhref=[\"']?(?:https?:)?//[^\"'\s>]+",
    re.IGNORECASE,
)
IMPORTED = re.compile(
    r"@import\s+(?:url\()?[\"']?(?:https?:)?//[^\"')\s]+|url\(\s*[\"']?(?:https?:)?//[^\"')\s]+", re.IGNORECASE
)


def fetched(site: Path) -> list[str]:
    """What pages and styles of a site load from elsewhere."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            text = path.read_text(encoding="utf-8")
            hits = (
                [*IMPORTED.findall(text)]
                if path.suffix != ".html"
                else [*LOADED.findall(text), *IMPORTED.findall(text)]
            )
            found += [f"{path.relative_to(site)}: {hit}" for hit in hits]
    return found


if __name__ == "__main__":
    problems = fetched(Path(sys.argv[1]))
    print(*problems, sep="\n", end="\n" if problems else "")
    sys.exit(f"{len(problems)} things are loaded from elsewhere" if problems else 0)
