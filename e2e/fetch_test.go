package e2e

import (
	"path/filepath"
	"testing"
)

// TestFetch tells what git clients see.
func TestFetch(t *testing.T) { runStoriesWith(t, "testdata/fetch", makeTemplates(t), "") }

// inOlderVersions are the stories of TestFetch that are the same in a version of the protocol. "shallow" is told over SSH: of these versions HTTP has git's
// clients follow tags one fetch later than a file path has. Version 1 is version 0 behind a line that says so.
var inOlderVersions = map[string][]string{
	"0": {"clone", "incremental", "lsremote", "negotiation", "objectformat", "partial", "shallow-server", "sharing"},
	"1": {"clone", "negotiation"},
}

// TestFetchInOlderVersions tells what clients see that speak version 0 or 1.
func TestFetchInOlderVersions(t *testing.T) {
	templates := makeTemplates(t)
	for protocol, names := range inOlderVersions {
		t.Run("protocol-"+protocol, func(t *testing.T) {
			t.Parallel()
			var scripts []string
			for _, name := range names {
				scripts = append(scripts, filepath.Join("testdata/fetch", name+".txtar"))
			}
			runStoriesWith(t, "testdata/older", templates, protocol, scripts...)
		})
	}
}
