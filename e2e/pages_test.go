package e2e

import "testing"

// TestPages runs stories about the web pages of one process, and of a gateway with a node.
func TestPages(t *testing.T) {
	runStories(t, "testdata/pages")
	t.Run("elsewhere", func(t *testing.T) {
		t.Parallel()
		runStoriesIn(t, shape{between: "unix"}, "", makeTemplates(t), "2", "testdata/pages/file.txtar",
			"testdata/pages/lfs.txtar")
	})
}
