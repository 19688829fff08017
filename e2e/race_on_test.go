//go:build race

package e2e

// raceDetector: the tests run with it, so the binary gets it too.
const raceDetector = true
