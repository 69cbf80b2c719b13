// The entries of a chat's stream, as its messages. The server and the page share these rules.
//
//   {message}  a question, or an answer that has ended
//   {answer}   the URL of the stream of the answer that is being written

/** The messages, and the stream of the answer that is being written. A later answer to a question replaces an earlier one. */
export function fold(entries) {
  const messages = new Map()
  let answer = null
  for (const entry of entries) {
    const last = [...messages.values()].at(-1)
    if (last?.role === "assistant" && entry.message?.role !== "user") messages.delete(last.id)
    if (entry.message) messages.set(entry.message.id, entry.message)
    answer = entry.answer ?? null
  }
  return { messages: [...messages.values()], answer }
}
