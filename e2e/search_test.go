package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestSearch runs stories about code search, in one process and in separate ones.
func TestSearch(t *testing.T) {
	templates := makeTemplates(t)
	for name, shape := range map[string]shape{"serve": {}, "unix": {between: "unix", search: true},
		"tcp-and-secret": {between: "tcp", search: true}} {
		t.Run(name, func(t *testing.T) {
			if name == "tcp-and-secret" {
				skipIfShort(t)
			}
			t.Parallel()
			runStoriesIn(t, shape, "testdata/search", templates, "")
		})
	}
}

// cmdSearcher starts a search process, called "search", that listens at a Unix socket, and sets $SEARCH to its address
// and $STATE_search to its state directory: searcher [FLAGS].
func cmdSearcher(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	if neg || s.nodes["search"] != nil {
		ts.Fatalf("usage: searcher [FLAGS], while there is none")
	}
	state := filepath.Join(s.sockets, "search")
	if i := slices.Index(args, "--state"); i >= 0 {
		state = ts.MkAbs(args[i+1])
	}
	p, err := s.start(ts, append([]string{"search"}, args...), map[string]string{
		"--listen": "unix:" + filepath.Join(s.sockets, "search.sock"), "--state": state, "--ops": "127.0.0.1:0",
		"--log-format": "json",
	})
	ts.Check(err)
	p.name, p.state = "search", state
	s.nodes["search"] = p
	ts.Setenv("SEARCH", p.listen)
	ts.Setenv("STATE_search", state)
}

// cmdFinds searches again and again until the answer has all of the texts, or with ! none of them, and is good: [!]
// finds [-by NAME=FILE] QUERY TEXT..., with a token in a file.
func cmdFinds(ts *testscript.TestScript, neg bool, args []string) {
	var name, token string
	if len(args) > 1 && args[0] == "-by" {
		var file string
		name, file, _ = strings.Cut(args[1], "=")
		token, args = strings.TrimSpace(ts.ReadFile(file)), args[2:]
	}
	if len(args) < 2 {
		ts.Fatalf("usage: [!] finds [-by NAME=FILE] QUERY TEXT...")
	}
	target := storyOf(ts).server(ts).http + "/-/api/v1/search?q=" + url.QueryEscape(args[0])
	began := time.Now()
	status, body := 0, ""
	if !gittest.Eventually(func() bool {
		status, body = get(ts, target, name, token)
		wrong := func(text string) bool { return strings.Contains(body, text) == neg }
		return status == http.StatusOK && !slices.ContainsFunc(args[1:], wrong)
	}) {
		ts.Fatalf("search for %s: got %d %.2000s, want 200 and contains=%v for each of %q", args[0], status, body, !neg,
			args[1:])
	}
	ts.Logf("%s after %v", args[0], time.Since(began))
}

// cmdCurrent checks that a search reports a commit as the current one of a repository: current -by NAME=FILE QUERY
// COMMIT. A separate search process learns of a push later. Therefore it gets time.
func cmdCurrent(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 || args[0] != "-by" {
		ts.Fatalf("usage: current -by NAME=FILE QUERY COMMIT")
	}
	s := storyOf(ts)
	name, file, _ := strings.Cut(args[1], "=")
	target := s.server(ts).http + "/-/api/v1/search?q=" + url.QueryEscape(args[2])
	status, body := 0, ""
	current := func() bool {
		status, body = get(ts, target, name, strings.TrimSpace(ts.ReadFile(file)))
		return status == http.StatusOK && strings.Contains(body, `"current":"`+args[3]+`"`)
	}
	if s.shape.search && !gittest.Eventually(current) || !s.shape.search && !current() {
		ts.Fatalf("search for %s: got %d %.2000s, want 200 and the current commit %s", args[2], status, body, args[3])
	}
}

func get(ts *testscript.TestScript, target, name, token string) (status int, body string) {
	request, err := http.NewRequest(http.MethodGet, target, nil)
	ts.Check(err)
	if name != "" {
		request.SetBasicAuth(name, token)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, fmt.Sprint(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, fmt.Sprint(err)
	}
	return answer.StatusCode, string(text)
}

// cmdKillIndex kills the processes that index and search, but for those that started them: killindex.
func cmdKillIndex(ts *testscript.TestScript, neg bool, args []string) {
	killed := 0
	for _, p := range storyOf(ts).all() {
		for _, pid := range allChildrenOf(p.cmd.Process.Pid) {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if strings.HasPrefix(string(command), "packhorse-search\x00") && syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	if killed == 0 && runtime.GOOS == "linux" {
		ts.Fatalf("no process indexes or searches")
	}
}
