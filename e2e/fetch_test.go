package e2e

import "testing"

// TestFetch tells what git clients see.
func TestFetch(t *testing.T) { runStories(t, "testdata/fetch") }
