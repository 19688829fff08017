package uploadpack

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// TestChargeCoversAllocation checks the memory that a session reserves for a long request. It is at least half of the
// allocations from the request's first byte to the pack. A growing list leaves as much garbage as its final size. The
// test does not run in parallel, because it measures allocations of the process.
func TestChargeCoversAllocation(t *testing.T) {
	// The second session finds what the first one has put into pools, unless a collection empties them or it runs on
	// another processor.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const n = 2000
	g := gittest.Init(t)
	var history strings.Builder
	for i := range n {
		fmt.Fprintf(&history, "commit refs/heads/main\ncommitter A <a@b> %d +0000\ndata 0\n", 1700000000+i)
	}
	gittest.Run(t, g.Dir, history.String(), "fast-import", "--quiet")
	ids := strings.Fields(g.Git("rev-list", "--all"))
	names, packed := make([]string, n), ""
	for i, id := range ids {
		names[i] = fmt.Sprintf("refs/heads/branch-%04d", i)
		packed += id + " " + names[i] + "\n"
	}
	if err := os.WriteFile(filepath.Join(g.Dir, "packed-refs"), []byte(packed), 0o666); err != nil {
		t.Fatal(err)
	}
	r := openRepo(t, g.Dir)
	list := func(key string, values []string) (lines []string) {
		for _, v := range values {
			lines = append(lines, key+" "+v)
		}
		return append(lines, "done")
	}
	for _, version := range []node.Session{version2, {Version: protocol.V0, Stateless: true}} {
		for _, test := range []struct {
			name  string
			lines []string
		}{
			{"wants", list("want", ids)},
			{"haves", append([]string{"want " + ids[0]}, list("have", ids)...)},
			{"want-refs", list("want-ref", names)},
			{"shallows", append([]string{"want " + ids[0]}, list("shallow", ids)...)},
		} {
			request := fetchOf(nil, test.lines...)
			if version.Version == protocol.V0 {
				if test.name == "want-refs" {
					continue
				}
				request = needsOf(test.lines)
			}
			serve := func() *recorder {
				server, response := New(keySource{}, Options{}), newRecorder()
				if _, err := server.Serve(t.Context(), r, version, pktline.NewReader(bytes.NewReader(request)),
					response); err != nil {
					t.Fatal(err)
				}
				return response
			}
			// The measure is the least of several sessions, because other goroutines only add to it. So do pools: the
			// race detector has them forget every fourth object at random. Therefore the number of attempts is
			// generous. for parts of a session that do not grow with the request, and for the race detector
			const slack = 512 << 10
			allocated, response := int64(math.MaxInt64), serve()
			for range 50 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				response = serve()
				runtime.ReadMemStats(&after)
				allocated = min(allocated, int64(after.TotalAlloc-before.TotalAlloc))
				if allocated <= 2*response.held+slack {
					break
				}
			}
			if allocated > 2*response.held+slack || response.held > 2*allocated {
				t.Errorf("version %v, %d %s: the session allocated %d bytes for each and counted %d, want a factor of at most 2",
					version.Version, n, test.name, allocated/n, response.held/n)
			}
		}
	}
}

// needsOf is a request of version 0.
func needsOf(lines []string) []byte {
	var b []byte
	flushed := false
	for _, line := range lines {
		if !flushed && (strings.HasPrefix(line, "have") || line == "done") {
			b, flushed = pktline.AppendFlush(b), true
		}
		b = pktline.AppendLine(b, line)
	}
	return b
}
