// What stands in the header of every page.
import { useState } from "./preact-hooks.js"
import { choose, chosenColours } from "./colours.js"
import { html } from "./html.js"

export const Brand = () => html`<a class="brand" href="../" aria-label="Tidemark"><img src="console/icon.svg" alt="" width="24" height="24" /><span>Tidemark</span></a>`

export function Colours() {
  const [colours, setColours] = useState(chosenColours)
  const onChange = ({ currentTarget: { value } }) => {
    choose(value)
    setColours(value)
  }
  return html`<label class="colours"><span class="unseen">Colours</span>
    <select value=${colours} onChange=${onChange}><option value="">System colours</option><option value="light">Light</option><option value="dark">Dark</option></select>
  </label>`
}
