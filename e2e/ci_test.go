package e2e

import "testing"

// TestCI runs the commands of CI systems, each beside the same by file path, in the protocol version of today and in that of old agents.
func TestCI(t *testing.T) {
	templates := makeTemplates(t)
	for _, protocol := range []string{"2", "0"} {
		t.Run("protocol-"+protocol, func(t *testing.T) {
			t.Parallel()
			runStoriesWith(t, "testdata/ci", templates, protocol)
		})
	}
}
