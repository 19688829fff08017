package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestWritersBesidePushes has callers change their own files of a branch by calls, while a client pushes to it with
// git. No call is refused, a push only because it was late, and every reported commit is there.
// PACKHORSE_WRITER_COMMITS is the number of commits of each caller.
func TestWritersBesidePushes(t *testing.T) {
	t.Parallel()
	t.Run("disk", func(t *testing.T) {
		t.Parallel()
		r := newRegisters(t, 1, true)
		b := &besideWorld{T: t, header: r.header, urls: []string{r.url()}, dir: r.dir}
		b.run(64, false)
		b.run(8, true)
		gittest.At(t, r.repo).Git("fsck", "--strict", "--no-dangling")
	})
	t.Run("store", func(t *testing.T) {
		t.Parallel()
		skipIfShort(t)
		c := newCluster(t)
		c.create("r")
		b := &besideWorld{T: t, header: c.header, urls: []string{c.gateways[0].http, c.gateways[1].http}, dir: c.dir}
		b.run(8, true)
		c.checkEmptyNode("r")
	})
}

// besideWorld is a server or cluster with the repository "r".
type besideWorld struct {
	*testing.T
	header string
	urls   []string // of the gateways
	dir    string

	branch string
	mu     sync.Mutex
	made   []string // reported commits
}

// run has callers change a new branch, and optionally git push.
func (b *besideWorld) run(callers int, pushes bool) {
	b.Helper()
	commits := 3
	_, _ = fmt.Sscan(os.Getenv("PACKHORSE_WRITER_COMMITS"), &commits)
	b.branch, b.made = fmt.Sprint("beside-", callers), nil
	base := b.post(0, map[string]any{"branch": b.branch, "create": true, "message": "base",
		"changes": putText("base", "x")})
	var group, pushing sync.WaitGroup
	stop := make(chan struct{})
	late, start := 0, time.Now()
	if pushes {
		pushing.Go(func() { late = b.push(stop) })
	}
	var longest atomic.Int64
	for i := range callers {
		group.Go(func() {
			for n := range commits {
				begun := time.Now()
				b.post(i, map[string]any{"branch": b.branch, "expected_head": base, "on_moved": "REAPPLY", "message": "call",
					"changes": putText(fmt.Sprintf("dir%d/%d", i, n), "x")})
				longest.Store(max(longest.Load(), int64(time.Since(begun))))
			}
		})
	}
	group.Wait()
	close(stop)
	pushing.Wait()
	b.Logf("%d callers: %d commits in %v, %d pushes were late, longest call %v", callers, len(b.made), time.Since(start),
		late, time.Duration(longest.Load()))
	clone := filepath.Join(b.TempDir(), "clone")
	if out, err := clientGit(b.T, b.header, b.dir, "clone", "-q", "--bare", "--single-branch", "-b", b.branch,
		b.urls[0]+"/r", clone); err != nil {
		b.Fatalf("clone: %v %s", err, out)
	}
	at := gittest.At(b.T, clone)
	at.Git("fsck", "--strict", "--no-dangling")
	there := "\n" + at.Git("rev-list", "HEAD") + "\n"
	for _, id := range b.made {
		if !strings.Contains(there, "\n"+id+"\n") {
			b.Errorf("commit %s is lost", id)
		}
	}
	if got := strings.Count(there, "\n") - 1; got != len(b.made) {
		b.Errorf("the branch has %d commits, %d were reported", got, len(b.made))
	}
	if got := len(strings.Fields(at.Git("ls-tree", "-r", "--name-only", "HEAD"))); got != len(b.made) {
		b.Errorf("the branch has %d files, want %d", got, len(b.made))
	}
}

func putText(path, text string) []any {
	return []any{map[string]any{"put": map[string]string{"path": path, "text": text}}}
}

// post makes a commit, and notes it.
func (b *besideWorld) post(gateway int, body any) string {
	b.Helper()
	status, commit, err := postCommit(b.urls[gateway%len(b.urls)]+"/-/api/v1/repos/r/commits", b.header, body)
	if err != nil || status != http.StatusOK {
		b.Errorf("a call was refused with %d, %v", status, err)
		return ""
	}
	b.note(commit)
	return commit
}

func (b *besideWorld) note(commit string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made = append(b.made, commit)
}

// push pushes commits until stop is closed, and at least one. It returns how many were refused because the branch had
// moved.
func (b *besideWorld) push(stop <-chan struct{}) (late int) {
	b.Helper()
	dir := filepath.Join(b.TempDir(), "pusher")
	client := gittest.InitAt(b.T, dir)
	for made := 0; ; {
		select {
		case <-stop:
			if made > 0 {
				return late
			}
		default:
		}
		url := b.urls[late%len(b.urls)] + "/r"
		out, err := clientGit(b.T, b.header, dir, "fetch", "-q", url, "+refs/heads/"+b.branch+":refs/heads/x")
		if err != nil {
			b.Errorf("fetch: %v %s", err, out)
			return late
		}
		tip := client.Git("rev-parse", "x")
		tree := client.GitIn(client.Git("ls-tree", "x")+fmt.Sprintf("\n100644 blob %s\tpushed-%d\n", client.Blob("p"), made),
			"mktree")
		id := client.Git("commit-tree", "-p", tip, "-m", "push", tree)
		out, err = clientGit(b.T, b.header, dir, "push", "--porcelain", url, id+":refs/heads/"+b.branch)
		switch kind, _ := pushResult(out, "refs/heads/"+b.branch, err); {
		case kind == done:
			b.note(id)
			made++
		case kind == refused:
			late++
			b.Logf("a late push: %.300q", out)
		default:
			b.Errorf("a push: %v %s", err, out)
			return late
		}
	}
}
