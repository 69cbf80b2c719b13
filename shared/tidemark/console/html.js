// Markup as tagged templates: whatever is put in is text, never markup.
import htm from "./htm.js"
import { h } from "./preact.js"

export const html = htm.bind(h)
