/* Typeset the formulas that pymdownx.arithmatex marks: \( ... \) in a line, \[ ... \] as a block. KaTeX comes with the site. */
document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".arithmatex")) {
    const text = place.textContent.trim()
    katex.render(text.slice(2, -2), place, { displayMode: text.startsWith("\\["), throwOnError: false })
  }
})
