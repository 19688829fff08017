package e2e

import "testing"

// TestPush tells stories of pushes.
func TestPush(t *testing.T) { runStories(t, "testdata/push") }
