//go:build race

package compare

// raceEnabled: each access to memory is looked at.
const raceEnabled = true
