// The colours that the reader has chosen, on every page: those of the system, light or dark.
const KEY = "tidemark-colours"

export const chosenColours = () => localStorage.getItem(KEY) ?? ""

export function choose(colours) {
  document.documentElement.dataset.colours = colours
  colours ? localStorage.setItem(KEY, colours) : localStorage.removeItem(KEY)
}

document.documentElement.dataset.colours = chosenColours()
