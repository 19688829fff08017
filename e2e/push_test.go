package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestPush runs stories of pushes to one process and through a gateway.
func TestPush(t *testing.T) {
	runStories(t, "testdata/push")
	templates := makeTemplates(t)
	t.Run("gateway", func(t *testing.T) {
		t.Parallel()
		runStoriesIn(t, shape{between: "unix"}, "", templates, "2", "testdata/push/http.txtar", "testdata/push/reasons.txtar",
			"testdata/push/rules.txtar", "testdata/push/revoked.txtar")
	})
}

// TestPushKills kills the server in the middle of pushes several times. Each commit that a client got a success for is
// there, and the next push of each client succeeds.
func TestPushKills(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, state := filepath.Join(dir, "repos"), filepath.Join(dir, "state")
	served := gittest.InitAt(t, filepath.Join(root, "app.git"))
	start := func() *serverProcess {
		p, err := startServer(dir, os.Environ(), []string{
			"serve", "--root", root, "--state", state, "--http", "127.0.0.1:0", "--ops", "", "--log-format", "json",
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := start()
	defer func() { p.cmd.Process.Kill(); <-p.ended }()
	token := createToken(t, "alice", "--state", state)
	const clients = 3
	var all []*pusher
	for i := range clients {
		c := &pusher{Repo: gittest.Init(t), branch: fmt.Sprintf("client-%d", i), token: token}
		c.Git("update-ref", "refs/heads/main", c.Commit(c.branch).String())
		all = append(all, c)
	}
	rnd := rand.New(rand.NewPCG(5, 5))
	for range 5 {
		url := p.http
		killed := make(chan struct{})
		var pushing sync.WaitGroup
		for _, c := range all {
			pushing.Go(func() { c.pushUntil(url, killed) })
		}
		time.Sleep(time.Duration(50+rnd.IntN(300)) * time.Millisecond)
		p.cmd.Process.Kill()
		<-p.ended
		close(killed)
		pushing.Wait()
		p = start()
		for _, c := range all {
			if c.told != "" {
				if _, err := served.Try("merge-base", "--is-ancestor", c.told, "refs/heads/"+c.branch); err != nil {
					t.Errorf("%s was told that %s is there: %v", c.branch, c.told, err)
				}
			}
			if err := c.push(p.http, ""); err != nil {
				t.Errorf("%s cannot push any more: %v", c.branch, err)
			}
		}
	}
	served.Git("fsck", "--strict")
	checkEvents(t, served.Git("for-each-ref", refsFormat), all, "--root", root, "--state", state)
	told := 0
	for _, c := range all {
		told += len(c.accepted)
	}
	t.Logf("%d pushes were acknowledged", told)
}

// readEvent is an event as packhorse events prints it.
type readEvent struct {
	ID, Kind, Position, Repository string
	Refs                           []struct {
		Name, Kind string
		Old        string `json:"old_oid"`
		New        string `json:"new_oid"`
	}
}

// readEvents returns the events that packhorse events prints.
func readEvents(t *testing.T, flags ...string) (list []readEvent) {
	t.Helper()
	for line := range strings.Lines(runPackhorse(t, "", append([]string{"events", "--json"}, flags...)...)) {
		var e readEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("event %s: %v", line, err)
		}
		list = append(list, e)
	}
	return list
}

const refsFormat = "--format=%(refname) %(objectname)" // of checkEvents

// checkEvents checks that the events of refs, which begin with no ref, are their changes: each one once and in order.
// Each push that a client got a success for has one.
func checkEvents(t *testing.T, refs string, clients []*pusher, flags ...string) []readEvent {
	t.Helper()
	list := readEvents(t, flags...)
	tips, found := map[string]string{}, map[string]int{}
	for _, e := range list {
		for _, r := range e.Refs {
			want := "created"
			if r.Old != "" {
				want = "fast-forward"
			}
			if r.Old != tips[r.Name] || r.Kind != want {
				t.Errorf("event %+v: want one that follows %q and is %s", e, tips[r.Name], want)
			}
			tips[r.Name] = r.New
			found[r.New]++
		}
	}
	for _, c := range clients {
		for _, id := range c.accepted {
			if found[id] != 1 {
				t.Errorf("the push of %s to %s has %d events, want 1", id, c.branch, found[id])
			}
		}
	}
	for ref := range strings.Lines(refs) {
		name, id, _ := strings.Cut(strings.TrimSpace(ref), " ")
		if tips[name] != id {
			t.Errorf("the last event of %s is %s, the ref is %s", name, tips[name], id)
		}
		delete(tips, name)
	}
	if len(tips) > 0 {
		t.Errorf("events of refs that do not exist: %v", tips)
	}
	return list
}

// pusher pushes one commit after the other to a separate branch.
type pusher struct {
	*gittest.Repo
	branch, token string
	told          string   // the last commit that the server confirmed
	accepted      []string // all of them that were new
}

func (c *pusher) pushUntil(url string, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		default:
		}
		_ = c.push(url, fmt.Sprintf("%s %d", c.branch, len(c.accepted)))
	}
}

// push makes a commit, unless its text is empty, and pushes what there is.
func (c *pusher) push(url, text string) error {
	if text != "" {
		c.Git("update-ref", "refs/heads/main", c.Commit(text, c.ID("main")).String())
	}
	tip := c.ID("main").String()
	_, err := c.Try("-c", "http.extraHeader=Authorization: Bearer "+c.token, "push", "--quiet", url+"/app",
		"main:refs/heads/"+c.branch)
	if err == nil {
		if c.told != tip {
			c.accepted = append(c.accepted, tip)
		}
		c.told = tip
	}
	return err
}
