// The colours that the reader has chosen, on every page: those of the system, light or dark.
const KEY = "tidemark-colours"

// By choice: its symbol and what it is called. A button goes from one to the next.
const CHOICES = { "": ["◐", "those of the system"], light: ["☀\uFE0E", "light"], dark: ["☾\uFE0E", "dark"] }
const NAMES = Object.keys(CHOICES)

export const symbolOf = (colours) => CHOICES[colours][0]
export const titleOf = (colours) => `Colours: ${CHOICES[colours][1]}`
export const after = (colours) => NAMES[(NAMES.indexOf(colours) + 1) % NAMES.length]

export const chosenColours = () => CHOICES[localStorage.getItem(KEY)] ? localStorage.getItem(KEY) : ""

export function choose(colours) {
  document.documentElement.dataset.colours = colours
  colours ? localStorage.setItem(KEY, colours) : localStorage.removeItem(KEY)
}

document.documentElement.dataset.colours = chosenColours()
