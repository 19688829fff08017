package e2e

import (
	"path/filepath"
	"testing"
)

// TestFetch tells what git clients see.
func TestFetch(t *testing.T) { runStoriesWith(t, "testdata/fetch", makeTemplates(t), "") }

// inAllVersions are the stories of TestFetch that are the same in every version of the protocol.
var inAllVersions = []string{
	"clone", "incremental", "lsremote", "negotiation", "objectformat", "partial", "shallow", "shallow-server", "sharing",
}

// TestFetchInOlderVersions tells what clients see that speak version 0 or 1.
func TestFetchInOlderVersions(t *testing.T) {
	templates := makeTemplates(t)
	var scripts []string
	for _, name := range inAllVersions {
		scripts = append(scripts, filepath.Join("testdata/fetch", name+".txtar"))
	}
	for _, protocol := range []string{"0", "1"} {
		t.Run("protocol-"+protocol, func(t *testing.T) {
			t.Parallel()
			runStoriesWith(t, "testdata/older", templates, protocol, scripts...)
		})
	}
}
