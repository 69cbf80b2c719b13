// Markup as tagged templates: whatever is put in is text, never markup.
import htm from "./htm.js"
import { h } from "./preact.js"

// They turn the text around them, or are half a character: their code is shown in their place.
const UNSEEN = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\p{Surrogate}/gu
export const visible = (text) => text.replace(UNSEEN, (each) => `⟨U+${each.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`)

export const html = htm.bind((type, props, ...children) => h(type, props, ...children.map((each) => (typeof each === "string" ? visible(each) : each))))

// A link by a name that may be long: it is cut, and whole under the pointer and where it has the focus.
export const NameLink = ({ href, name }) => html`<a class="name" href=${href} title=${visible(name)}>${name}</a>`
