package e2e

import "testing"

// TestCI runs the commands of CI systems and compares their results with those of the same commands by file path. It
// uses version 2 of the protocol and, without -short, version 0, which old agents speak.
func TestCI(t *testing.T) {
	templates := makeTemplates(t)
	protocols := []string{"2", "0"}
	if testing.Short() {
		protocols = protocols[:1]
	}
	for _, protocol := range protocols {
		t.Run("protocol-"+protocol, func(t *testing.T) {
			t.Parallel()
			runStoriesWith(t, "testdata/ci", templates, protocol)
		})
	}
}
