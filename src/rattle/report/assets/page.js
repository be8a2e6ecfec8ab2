"use strict";
// Draws the page's figures in the colours of the style sheet, and runs its tabs, theme and cameras.
(() => {
  const specs = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const plots = [...document.querySelectorAll("[data-figure]")];
  const webgl = (() => {
    try { return !!document.createElement("canvas").getContext("webgl"); } catch { return false; }
  })();
  let camera = null;

  const ink = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const viridis = ["#414487", "#3b528b", "#33638d", "#287d8e", "#1f968b", "#29af7f", "#55c667", "#95d840", "#dce319"];
  const scales = {
    loss: () => viridis.map((colour, i) => [(i / (viridis.length - 1)) ** 1.4, colour]),
    heat: () => [[0, ink("--heat-low")], [1, ink("--heat-high")]],
  };
  const resolve = (value) => {
    if (typeof value === "string") return value.startsWith("var(--") ? ink(value.slice(4, -1)) : value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(resolve);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, resolve(entry)]));
  };

  // the look of each kind of trace
  const looks = {
    surface: ({ cmin, cmax }) => ({ colorscale: scales.loss(), showscale: false,
      contours: { z: { show: true, start: cmin, end: cmax, size: (cmax - cmin) / 14, color: "rgba(255, 255, 255, 0.33)" } },
      lighting: { ambient: 0.75, diffuse: 0.45, specular: 0.04, roughness: 0.9 } }),
    scatter3d: () => ({ marker: { size: 5, color: "#ffffff", line: { color: "#222833", width: 2 } } }),
    heatmap: () => ({ colorscale: scales.heat(), xgap: 1, ygap: 1 }),
  };
  const dressTrace = (trace) => ({ ...(looks[trace.type] ? looks[trace.type](trace) : {}), ...trace });
  const dressAxis = (axis) => ({
    automargin: true, hoverformat: ".4~g", gridcolor: ink("--rule"), linecolor: ink("--faint"), zerolinecolor: ink("--rule"), ticks: "", ...axis,
    tickfont: { size: 12, color: ink("--soft-ink") },
    title: { ...axis.title, standoff: 8, font: { size: 12, color: ink("--soft-ink") } },
  });
  const dressScene = (scene) => {
    const small = (axis) => ({
      ...axis, nticks: 5, gridcolor: ink("--rule"), zeroline: false, showspikes: false, backgroundcolor: ink("--raised"),
      showbackground: true, tickfont: { size: 10, color: ink("--soft-ink") },
      title: { ...axis.title, font: { size: 11, color: ink("--soft-ink") } },
    });
    return { aspectmode: "manual", aspectratio: { x: 1, y: 1, z: 0.72 }, dragmode: "turntable", camera: camera || start, xaxis: small(scene.xaxis), yaxis: small(scene.yaxis),
      zaxis: small(scene.zaxis) };
  };
  // plotly gives every entry the width of the widest once they need more than one row
  const legendRows = (spec, width) => {
    const named = spec.data.filter((trace) => trace.name);
    const widths = named.map((trace) => 48 + 6.4 * trace.name.length), space = Math.max(width - 72, 100);
    if (widths.reduce((all, one) => all + one, 0) <= space) return 1;
    return Math.ceil(named.length / Math.max(1, Math.floor(space / Math.max(...widths))));
  };
  const dress = (spec, element) => {
    const layout = {
      ...spec.layout, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink("--ink") },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: ink("--faint"), activecolor: ink("--ink") },
      hoverlabel: { bgcolor: ink("--paper"), bordercolor: ink("--faint"), namelength: -1, font: { color: ink("--ink") } },
    };
    if (layout.scene) {
      return { ...layout, scene: dressScene(layout.scene), margin: { l: 0, r: 0, t: 0, b: 0 }, showlegend: false };
    }
    const shown = !("keyed" in element.dataset) && spec.data.some((trace) => trace.name);
    return { ...layout, xaxis: dressAxis(layout.xaxis), yaxis: dressAxis(layout.yaxis), showlegend: shown,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", xanchor: "left" },
      margin: { l: 56, r: 16, t: shown ? 26 + 20 * legendRows(spec, element.clientWidth) : 34, b: 48 } };
  };
  // without WebGL a surface is drawn as a contour map
  const flattened = (spec) => {
    const [mesh] = spec.data;
    return {
      data: [{ type: "contour", x: mesh.x, y: mesh.y, z: mesh.z, zmin: mesh.cmin, zmax: mesh.cmax,
        colorscale: scales.loss(), showscale: true, line: { width: 0.5 } }],
      layout: { xaxis: { title: spec.layout.scene.xaxis.title }, yaxis: { title: spec.layout.scene.yaxis.title } },
    };
  };

  const visible = (element) => element.offsetParent !== null;
  const draw = (element) => {
    let spec = specs[element.dataset.figure];
    if (spec.layout.scene && !webgl) spec = flattened(spec);
    const solid = "scene" in spec.layout;
    const rows = solid || "keyed" in element.dataset ? 0 : legendRows(spec, element.clientWidth);
    element.style.minHeight = rows > 3 ? `${240 + 20 * rows}px` : "";
    const format = solid ? "png" : "svg";
    const settings = { displaylogo: false, responsive: true, modeBarButtons: [["toImage"]],
      toImageButtonOptions: { format, filename: element.id }, scrollZoom: false };
    const data = resolve(spec.data).map(dressTrace);
    const drawn = Plotly.react(element, data, dress(spec, element), settings);
    element.dataset.drawn = "yes";
    if (solid) {
      drawn.then(() => {
        if (element.dataset.linked) return;
        element.dataset.linked = "yes";
        element.on("plotly_relayout", (change) => {
          if (change["scene.camera"]) turnAll(change["scene.camera"], element);
        });
      });
    }
    return drawn;
  };
  const clear = (element) => {
    if (element.dataset.drawn !== "yes") return;
    Plotly.purge(element);
    delete element.dataset.drawn;
    delete element.dataset.linked;
  };
  const drawVisible = (again) => {
    for (const element of plots) {
      if (!visible(element)) { if ("gl" in element.dataset) clear(element); continue; }
      if (again || element.dataset.drawn !== "yes") draw(element);
    }
  };

  // all surfaces share one camera
  const turnAll = (next, from) => {
    camera = next;
    for (const element of plots) {
      if (element === from || !("gl" in element.dataset) || element.dataset.drawn !== "yes" || !webgl) continue;
      const now = element._fullLayout.scene.camera.eye;
      if (Math.hypot(now.x - next.eye.x, now.y - next.eye.y, now.z - next.eye.z) > 1e-3) {
        Plotly.relayout(element, { "scene.camera": next });
      }
    }
  };
  const start = { eye: { x: -1.38, y: -1.38, z: 0.84 }, center: { x: 0, y: 0, z: -0.12 } };
  const turn = (way) => {
    const now = camera || start;
    if (way === "reset") return turnAll(start);
    const { x, y, z } = now.eye;
    const flat = Math.hypot(x, y), length = Math.hypot(flat, z);
    let around = Math.atan2(y, x), above = Math.atan2(z, flat);
    if (way === "left") around -= Math.PI / 12;
    if (way === "right") around += Math.PI / 12;
    if (way === "up") above = Math.min(above + Math.PI / 16, 1.5);
    if (way === "down") above = Math.max(above - Math.PI / 16, -0.2);
    const reach = length * Math.cos(above);
    turnAll({ ...now, eye: { x: reach * Math.cos(around), y: reach * Math.sin(around), z: length * Math.sin(above) } });
  };
  for (const button of document.querySelectorAll("[data-turn]")) {
    button.addEventListener("click", () => turn(button.dataset.turn));
  }

  // tabs: arrow keys, Home and End, as in the ARIA authoring practices
  const choose = (list, tab, focus) => {
    for (const other of list) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
    }
    if (focus) tab.focus();
    drawVisible(false);
  };
  for (const bar of document.querySelectorAll('[role="tablist"]')) {
    const list = [...bar.querySelectorAll('[role="tab"]')];
    list.forEach((tab, i) => {
      document.getElementById(tab.getAttribute("aria-controls")).dataset.title = tab.textContent;
      tab.addEventListener("click", () => choose(list, tab, false));
      tab.addEventListener("keydown", (event) => {
        const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: list.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        choose(list, list[(to + list.length) % list.length], true);
      });
    });
  }

  // more panels than tabs have room for: a box to choose from
  for (const box of document.querySelectorAll("[data-panels]")) {
    const panels = [...box.options].map((_, i) => document.getElementById(`${box.dataset.panels}-panel-${i}`));
    panels.forEach((panel, i) => { panel.dataset.title = box.options[i].textContent; });
    box.addEventListener("change", () => {
      panels.forEach((panel, i) => { panel.hidden = i !== box.selectedIndex; });
      drawVisible(false);
    });
  }
  // a figure inside a folded part is drawn when it is opened
  for (const part of document.querySelectorAll("details")) part.addEventListener("toggle", () => drawVisible(false));

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const remembered = () => { try { return localStorage.getItem("rattle-theme"); } catch { return null; } };
  const paint = (theme) => {
    root.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light" : "Dark";
  };
  button.addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("rattle-theme", theme); } catch { /* a page from a file may not be allowed to */ }
    paint(theme);
    drawVisible(true);
  });
  dark.addEventListener("change", () => {
    if (!remembered()) { paint(dark.matches ? "dark" : "light"); drawVisible(true); }
  });

  let before = "light";
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.classList.add("printing");
    paint("light");
    drawVisible(true);
    for (const element of plots) {
      if ("gl" in element.dataset) continue;
      const panel = element.closest(".panel[hidden]");
      if (panel) { panel.hidden = false; draw(element); panel.hidden = true; }
    }
  });
  window.addEventListener("afterprint", () => { root.classList.remove("printing"); paint(before); drawVisible(true); });

  const asked = new URLSearchParams(location.search).get("theme");
  paint(["light", "dark"].includes(asked) ? asked : remembered() || (dark.matches ? "dark" : "light"));
  drawVisible(false);
  root.dataset.ready = "yes";
})();
