//go:build race

package compare

// raceEnabled reports whether the race detector checks each access to memory.
const raceEnabled = true
