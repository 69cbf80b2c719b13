// The dialog that creates a stream.
import { pathOf } from "./api.js"
import { ActionDialog } from "./dialogs.js"
import { html } from "./html.js"

const TYPES = ["application/json", "text/plain", "application/octet-stream", "application/x-ndjson"]

// `onDone(path)` is called once it is there.
export function CreateDialog({ bucket, name, onDone, onClose }) {
  return html`<${ActionDialog}
    title="Create a stream"
    rights=${["write", "manage"]}
    fields=${[
      { name: "name", label: "Name", initial: name },
      { name: "type", label: "Content type", choices: TYPES, initial: TYPES[0] },
      { name: "ttl", label: "Time to live in seconds", hint: "The stream ends after so many seconds without a read or a write. Empty: never." },
    ]}
    build=${(values) => ({
      method: "PUT",
      path: pathOf(bucket, values.name),
      headers: { "Content-Type": values.type, ...(values.ttl ? { "Stream-TTL": values.ttl } : {}) },
    })}
    onDone=${(_, request) => onDone(request.path)}
    onClose=${onClose}
  />`
}
