//go:build race

package e2e

// raceDetector reports whether the tests run with the race detector.
const raceDetector = true
