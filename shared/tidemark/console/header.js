// What stands in the header of every page.
import { useState } from "./preact-hooks.js"
import { after, choose, chosenColours, symbolOf, titleOf } from "./colours.js"
import { html } from "./html.js"

export const Brand = () => html`<a class="brand" href="../" aria-label="Tidemark"><img src="console/icon.svg" alt="" width="24" height="24" /><span>Tidemark</span></a>`

export function Colours() {
  const [colours, setColours] = useState(chosenColours)
  const onClick = () => {
    choose(after(colours))
    setColours(after(colours))
  }
  return html`<button class="colours" aria-label=${titleOf(colours)} title=${titleOf(colours)} onClick=${onClick}>${symbolOf(colours)}</button>`
}
