package e2e

import "testing"

// TestPages tells what browsers are sent, by one process, and by a gateway of what a node has.
func TestPages(t *testing.T) {
	runStories(t, "testdata/pages")
	t.Run("elsewhere", func(t *testing.T) {
		t.Parallel()
		runStoriesIn(t, shape{between: "unix"}, "", makeTemplates(t), "2", "testdata/pages/file.txtar")
	})
}
