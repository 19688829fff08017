package gittest

import (
	"testing"
	"time"
)

// waitLimit is the longest wait of Eventually. It only ends tests that fail, also on slow machines.
const waitLimit = 2 * time.Minute

// Eventually calls done until it returns true, and reports whether it did so within two minutes. It is for conditions
// that no signal announces: the state of other processes and of files, and counters that a goroutine updates after its
// response. A condition in the test's own process needs a channel or testing/synctest instead.
func Eventually(done func() bool) bool {
	pause := time.Millisecond
	for end := time.Now().Add(waitLimit); !done(); time.Sleep(pause) {
		if time.Now().After(end) {
			return done()
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
	return true
}

// WaitFor fails the test if a condition does not become true in the time that Eventually gives it. The text what
// describes the condition, as in "the node is ready".
func WaitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	if !Eventually(done) {
		t.Fatalf("timed out after %v, want: %s", waitLimit, what)
	}
}
