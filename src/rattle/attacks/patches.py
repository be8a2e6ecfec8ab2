"""Forward passes of images that differ from known ones in one square: only what the square reaches is computed.

A convolution's output changes only where its filter touches a changed pixel. What the layers near the input answered
to the known images is stored; of each image a window around its square goes through these layers, and whole layers
begin where windows would cover most of the image. Square's squares are 3 to 5 pixels wide in most of its queries.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from rattle.attacks.batchnorm import agree, say_once
from rattle.attacks.reach import Layers, Recorder, Window
from rattle.attacks.rows import FlatModel
from rattle.errors import first_line
from rattle.forward import at_least_float32
from rattle.losses import logits_in

MOST_REACHED = 0.6  # share of a layer's pixels up to which windows are tried
MOST_STORED = 2**26  # numbers stored for all images together: 256 MiB in float32
# Costs in multiplications of a whole convolution, measured on one core (docs/studies/performance.md)
IN_A_WINDOW, MOVED, CALL = 1.4, 43, 3.4e5  # a multiplication in a window, a number read or written, a call of torch
LEAST_SAVED = 0.05  # share of the whole pass below which windows are not used


class Stored(NamedTuple):
    """Where a node's value is kept in an image's row: as pixels of so many channels, with a ring of zeros around."""

    offset: int
    ring: int
    height: int  # with the ring, as the width
    width: int
    channels: int


class Places:
    """Windows in rows of pixels: where they begin is looked up for all of them at once."""

    def __init__(self) -> None:
        self.tables: list[tuple[Tensor, Tensor, int]] = []  # by the square's row, by its column; pixels in a row
        self.grids: list[Tensor] = []  # a window's pixels from its first one

    def add(self, down: Tensor, right: Tensor, width: int, row: int, size: tuple[int, int]) -> int:
        """A number for windows of a size that begin (down, right) in pictures of a width, so many pixels a row."""
        self.tables.append((down * width, right, row))
        self.grids.append((torch.arange(size[0])[:, None] * width + torch.arange(size[1])).flatten())
        return len(self.grids) - 1

    def freeze(self) -> None:
        down, right, row = zip(*self.tables, strict=True)
        self.down, self.right, self.row = torch.stack(down), torch.stack(right), torch.tensor(row)[:, None]

    def begins(self, corner: Tensor, rows: Tensor) -> Tensor:
        """First pixels, [windows, n]."""
        return self.down[:, corner[:, 0]] + self.right[:, corner[:, 1]] + self.row * rows

    def pixels(self, number: int, begins: Tensor) -> Tensor:
        """Indices of the pixels of one of the windows, [n * h * w]."""
        return (begins[number][:, None] + self.grids[number]).view(-1)


class Read(NamedTuple):
    """A window of a stored value around the one that was computed, which is pasted into it."""

    source: fx.Node
    stored: int  # number of the window among those in stored values; -1: the whole value
    paste: int  # number of the computed window in the one that is read
    size: tuple[int, int]


class Step(NamedTuple):
    """One node of the network, on windows; an input is a Read, an earlier node, or a constant."""

    node: fx.Node
    run: Callable[..., Tensor]
    inputs: list[Any]


class Answer:
    """Logits of changed images, and what it takes to make the changes known."""

    def __init__(self, plan: "Plan", known: Tensor, rows: Tensor, corner: Tensor, patch: Tensor) -> None:
        self.plan, self.known, self.rows = plan, known, rows
        self.begins = plan.stored_places.begins(corner, rows)
        self.pastes = plan.read_places.begins(corner, torch.arange(len(rows)))
        self.values: dict[fx.Node, Tensor] = {}  # windows [n, C, h, w]
        self.computed: dict[fx.Node, Tensor] = {}  # the same of stored nodes as pixels [n * h * w, C]
        for step in plan.steps:
            inputs = [self.find(source) for source in step.inputs]
            self.values[step.node] = value = step.run(*inputs or [patch])
            if step.node in plan.stored:
                self.computed[step.node] = value.permute(0, 2, 3, 1).reshape(-1, value.shape[1])
        self.logits = at_least_float32(logits_in(plan.tail(*map(self.find, plan.border))))

    def find(self, source: Any) -> Any:
        if not isinstance(source, Read):
            return self.values[source] if isinstance(source, fx.Node) else source
        place, (height, width) = self.plan.stored[source.source], source.size
        if source.stored < 0:
            pixels = self.plan.inner(self.known, place).index_select(0, self.rows).view(-1, place.channels)
        else:
            index = self.plan.stored_places.pixels(source.stored, self.begins)
            pixels = self.known.view(-1, place.channels).index_select(0, index)
        pixels.index_copy_(0, self.plan.read_places.pixels(source.paste, self.pastes), self.computed[source.source])
        return pixels.view(-1, height, width, place.channels).permute(0, 3, 1, 2)

    def accept(self, wanted: Tensor) -> None:
        """Write into `known` what the changes of these images [n] changed."""
        for node, number in self.plan.written.items():
            index = self.plan.stored_places.pixels(number, self.begins[:, wanted])
            new = self.computed[node]
            own = new.view(len(wanted), -1, new.shape[1])[wanted]
            self.known.view(-1, new.shape[1]).index_copy_(0, index, own.view(-1, new.shape[1]))


class Plan:
    """How logits are computed for squares of one size."""

    def __init__(self, layers: Layers, side: int) -> None:
        self.layers = layers
        self.windows: dict[fx.Node, Window] = {}  # of the nodes that are computed in windows
        for node in layers.nodes:
            window = layers.window_of(node, side, self.windows)
            if window and math.prod(s.size for s in window) <= MOST_REACHED * math.prod(s.length for s in window):
                self.windows[node] = window
        self.needed: set[fx.Node] = set()  # nodes that are computed as a whole
        for node in reversed(layers.nodes):
            if node not in self.windows and (node.op == "output" or not self.needed.isdisjoint(node.users)):
                self.needed.add(node)
        self.read_whole = [node for node in self.windows if not self.needed.isdisjoint(node.users)]
        self.stored: dict[fx.Node, Stored] = {}
        self.size = 0  # numbers stored for an image
        self.stored_places, self.read_places = Places(), Places()
        self.steps: list[Step] = []
        self.written: dict[fx.Node, int] = {}  # numbers of the computed windows in stored values
        self.border: list[Read] = []  # what the rest of the network is asked with
        if self.windows:
            self.lay_out()
            self.compile()

    def pays(self, images: int, ahead: int = 1) -> bool:
        """Whether windows are estimated to be faster than whole layers, so many of each image at once, and fit."""
        work = {node: self.layers.multiplications(node) for node in self.layers.nodes}
        inside = sum(work[n] * math.prod(s.size / s.length for s in window) for n, window in self.windows.items())
        cost = IN_A_WINDOW * inside + MOVED * self.moved() + CALL * self.calls() / max(images * ahead, 1)
        saved = sum(work[node] for node in self.windows) - cost
        return 0 < self.size * images <= MOST_STORED and saved >= LEAST_SAVED * sum(work.values())

    def reads(self) -> list[Read]:
        return [read for step in self.steps for read in step.inputs if isinstance(read, Read)] + self.border

    def moved(self) -> int:
        """Numbers that are read and pasted for one image."""
        sizes = ((read, math.prod(read.size) + len(self.read_places.grids[read.paste])) for read in self.reads())
        return sum(self.stored[read.source].channels * pixels for read, pixels in sizes)

    def calls(self) -> int:
        """Calls of torch for one query of all images."""
        return 8 * len(self.reads()) + len(self.steps)

    def differs(self, node: fx.Node, source: fx.Node) -> bool:
        """Whether a pointwise node needs another window of an input than the one that is computed."""
        return not all(a.same(b) for a, b in zip(self.windows[node], self.windows[source], strict=True))

    def lay_out(self) -> None:
        """Give every value that is read around its window, or as a whole, a place in an image's row."""
        rings = dict.fromkeys(self.read_whole, 0)
        for node in self.windows:
            for source in (n for n in node.all_input_nodes if n in self.windows):
                if found := self.layers.filters.get(node):
                    ring = max(padding + stride - 1 for _, stride, padding in found.moves)
                    rings[source] = max(rings.get(source, 0), ring)
                elif self.differs(node, source):
                    rings.setdefault(source, 0)
        for node, ring in rings.items():
            _, channels, height, width = self.layers.shapes[node]
            offset = -(-self.size // channels) * channels  # a whole number of its pixels
            self.stored[node] = Stored(offset, ring, height + 2 * ring, width + 2 * ring, channels)
            self.size = offset + (height + 2 * ring) * (width + 2 * ring) * channels
        common = math.lcm(*(place.channels for place in self.stored.values()))
        self.size = -(-self.size // common) * common

    def compile(self) -> None:
        """Make the steps, the reads at the border of windows and whole layers, and the rest of the network."""
        for node, window in self.windows.items():
            if found := self.layers.filters.get(node):
                reach = [span.read_by(*move) for span, move in zip(window, found.moves, strict=True)]
                self.steps.append(Step(node, found.run, [self.read(node.all_input_nodes[0], reach)]))
            elif node.op == "placeholder":
                self.steps.append(Step(node, lambda patch: patch, []))
            else:
                inputs = [self.input_of(node, source) for source in node.args]
                self.steps.append(Step(node, self.layers.pointwise[node], inputs))
            if node in self.stored:
                self.written[node] = self.in_stored(node, [(span.first, span.size) for span in window])
        self.border = [self.read(node, None) for node in self.read_whole]
        graph = fx.Graph()
        copies = {node: graph.placeholder(node.name) for node in self.read_whole}
        for node in self.layers.nodes:
            if node in self.needed:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        self.tail = fx.GraphModule(self.layers.traced, graph)
        self.stored_places.freeze()
        self.read_places.freeze()

    def input_of(self, node: fx.Node, source: Any) -> Any:
        """An argument of a pointwise step."""
        if not isinstance(source, fx.Node):
            return source
        if source in self.layers.constants:
            return self.layers.constants[source]
        own = [(span.first, span.size) for span in self.windows[node]]
        return self.read(source, own) if self.differs(node, source) else source

    def in_stored(self, node: fx.Node, reach: list[tuple[Tensor, int]]) -> int:
        """The number of a window in a node's stored value."""
        place, ((top, height), (left, width)) = self.stored[node], reach
        right = left + place.ring + place.offset // place.channels
        return self.stored_places.add(
            top + place.ring, right, place.width, self.size // place.channels, (height, width)
        )

    def read(self, source: fx.Node, reach: list[tuple[Tensor, int]] | None) -> Read:
        """How a window around the computed one is read, or the whole value."""
        rows, columns = self.windows[source]
        number = -1 if reach is None else self.in_stored(source, reach)
        whole = [(torch.zeros_like(span.first), span.length) for span in (rows, columns)]
        (top, height), (left, width) = reach or whole
        size = (rows.size, columns.size)
        paste = self.read_places.add(rows.first - top, columns.first - left, width, height * width, size)
        return Read(source, number, paste, (height, width))

    def store(self, images: Tensor) -> Tensor:
        """What the layers answer to known images, [n, size]."""
        known = images.new_zeros(len(images), self.size)

        def see(node: fx.Node, value: Any) -> None:
            if node in self.stored:
                self.inner(known, self.stored[node]).copy_(value.permute(0, 2, 3, 1))

        Recorder(self.layers.traced, see).run(images)
        return known

    def inner(self, known: Tensor, place: Stored) -> Tensor:
        """A stored value of all images without its ring, [n, H, W, C]: a view."""
        end = place.offset + place.height * place.width * place.channels
        whole = known[:, place.offset : end].view(-1, place.height, place.width, place.channels)
        return whole[:, place.ring : place.height - place.ring, place.ring : place.width - place.ring]


class Patches:
    """A network's answers to flat images that differ from known ones in one square."""

    def __init__(self, model: FlatModel, x: Tensor) -> None:
        self.model, self.x = model, x[:2]
        self.layers: Layers | None = None
        self.plans: dict[int, Plan] = {}
        filters = any(isinstance(module, nn.Conv2d) for module in model.model.modules())
        self.refused = not (filters and model.channels_last and x.device.type == "cpu")  # never measured on a GPU

    def begin(self, best: Tensor, side: int, ahead: int = 1) -> Tensor:
        """What is stored of images before squares of this size; [n, 0] where whole passes are to be taken."""
        try:
            if not self.refused and (plan := self.plan(side)).pays(len(best), ahead):
                known = plan.store(self.model.images(best))
                if self.agrees(known, best, side):
                    return known
                self.refuse("windows of its layers give other logits")
        except Exception as reason:  # the model's own code runs on proxies and windows: whatever it raises, it works
            self.refuse(f"it cannot be traced ({first_line(reason)})")
        return best.new_empty(len(best), 0)

    def refuse(self, reason: str) -> None:
        self.refused = True
        say_once(self.model.model, reason)

    def plan(self, side: int) -> Plan:
        """The plan for squares of this size."""
        if side not in self.plans:
            self.layers = self.layers or Layers(self.model.model, self.model.images(self.x))
            self.plans[side] = Plan(self.layers, side)
        return self.plans[side]

    def answer(self, known: Tensor, side: int, rows: Tensor, corner: Tensor, patch: Tensor) -> Answer:
        """To these rows of known images with a patch [n, C, s, s] in a square whose corner is at [n, 2]."""
        return Answer(self.plan(side), known, rows, corner, patch)

    def agrees(self, known: Tensor, best: Tensor, side: int) -> bool:
        """Whether the logits are the network's own with inverted squares in two corners and in the middle."""
        bottom, right = (length - side for length in self.model.shape[1:])
        corner = torch.tensor([(0, 0), (bottom, right), (bottom // 2, right // 2)])[: len(best)]
        changed, patches = best[: len(corner)].clone(), []
        for image, (top, left) in zip(self.model.images(changed), corner.tolist(), strict=True):
            patches.append(image[:, top : top + side, left : left + side].mul_(-1).add_(1))
        answer = self.answer(known, side, torch.arange(len(corner)), corner, torch.stack(patches))
        return agree([self.model.logits(changed)], [answer.logits])
