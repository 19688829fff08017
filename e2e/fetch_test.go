package e2e

import (
	"path/filepath"
	"testing"
)

// TestFetch runs stories about fetches with git clients.
func TestFetch(t *testing.T) { runStoriesWith(t, "testdata/fetch", makeTemplates(t), "") }

// inOlderVersions lists the stories of TestFetch that are repeated in each version of the protocol. Version 1 is
// version 0 behind a line with its number, so that two stories are enough. The story "shallow" runs over SSH: in these
// versions git's clients follow tags over HTTP one fetch later than they do from a file path.
var inOlderVersions = map[string][]string{
	"0": {"clone", "incremental", "lsremote", "negotiation", "objectformat", "partial", "shallow-server", "sharing"},
	"1": {"clone", "negotiation"},
}

// TestFetchInOlderVersions runs stories with clients that speak version 0 or 1 of the protocol. With -short it repeats
// none of TestFetch in version 1 and one in version 0.
func TestFetchInOlderVersions(t *testing.T) {
	templates := makeTemplates(t)
	for protocol, names := range inOlderVersions {
		if testing.Short() {
			names = names[:map[string]int{"0": 1, "1": 0}[protocol]]
		}
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
