package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestPageMemory: visitors who request many large pages at once get 429 before the server has no memory left.
func TestPageMemory(t *testing.T) {
	t.Parallel()
	root, dir := t.TempDir(), t.TempDir()
	r := gittest.InitAt(t, filepath.Join(root, "app.git"))
	text := strings.Repeat(strings.Repeat("\x01\x02", 2000)+"\n", 500)
	var b strings.Builder
	fmt.Fprintf(&b, "blob\nmark :1\ndata %d\n%s\n", len(text), text)
	b.WriteString("commit refs/heads/main\ncommitter C <c> 1 +0000\ndata 0\n")
	const files = 40
	for i := range files {
		fmt.Fprintf(&b, "M 100644 :1 %d\n", i)
	}
	r.GitIn(b.String()+"\n", "fast-import", "--quiet")
	server, err := startServer(dir, nil, []string{"serve", "--root", root, "--state", filepath.Join(dir, "state"),
		"--http", "127.0.0.1:0", "--ops", "", "--log-format", "json"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killAll(t, server) })
	var mu sync.Mutex
	statuses := map[int]int{}
	var all sync.WaitGroup
	for i := range files {
		all.Go(func() {
			status, _, _ := newBrowserClient(t, server.http).try(fmt.Sprintf("/app/-/file/main/%d", i))
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	all.Wait()
	if statuses[http.StatusOK] == 0 || statuses[http.StatusOK]+statuses[http.StatusTooManyRequests] != files {
		t.Errorf("the statuses of %d large pages at once are %v, want 200 and 429", files, statuses)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", server.cmd.Process.Pid))
	if err != nil {
		t.Skip("there is no /proc")
	}
	peak, _ := strconv.Atoi(regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindStringSubmatch(string(status))[1])
	if peak > 2<<20 {
		t.Errorf("the server takes %d kB, want less than 2 GiB", peak)
	}
	t.Logf("statuses %v, %d kB", statuses, peak)
}
