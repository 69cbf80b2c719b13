// What the hook needs of React: it is mounted once, and unmounted when it shows the end.
let unmount
const states = []
export function useState(first) {
  states[0] = first
  return [first, (next) => {
    states[0] = typeof next === "function" ? next(states[0]) : next
    if (!states[0].done && !states[0].error) return
    console.log(JSON.stringify(states[0]))
    unmount()
  }]
}
export function useEffect(effect) { unmount = effect() }
