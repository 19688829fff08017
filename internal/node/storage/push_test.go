package storage_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/watch"
)

// newPushed makes a root that accepts pushes and checks watched repositories once an hour.
func newPushed(t *testing.T) *root {
	t.Helper()
	return newRoot(t, storage.Options{Pushes: newPushServer(t), CheckInterval: time.Hour})
}

func newPushServer(t *testing.T) *receivepack.Server {
	t.Helper()
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		receivepack.ClassReceive: {Slots: 4, Queue: 100},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	pushes, err := receivepack.New(receivepack.Options{Runner: runner, Agent: "test", Scripts: t.TempDir(),
		Journal: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return pushes
}

// push sends commands, without a pack.
func (r *root) push(path string, reply node.ResponseWriter, commands ...string) error {
	r.t.Helper()
	var b []byte
	for i, c := range commands {
		if i == 0 {
			c += "\x00 report-status"
		}
		b = pktline.AppendLine(b, c)
	}
	repo, err := git.ParseRepoPath(path)
	r.do(err)
	_, err = r.ReceivePack(context.Background(), repo, node.Session{Service: protocol.ReceivePack, Stateless: true},
		node.Pusher{},
		strings.NewReader(string(pktline.AppendFlush(b))), reply)
	return err
}

// reporting is a reply that calls a function before the report is written.
type reporting struct {
	answer
	before func()
}

func (r *reporting) Write(p []byte) (int, error) {
	r.before()
	return r.answer.Write(p)
}

// When the report goes out, requests see what was pushed, and the event is on its way to watches: one, with every ref.
func TestPushIsKnownBeforeItsReport(t *testing.T) {
	t.Parallel()
	r := newPushed(t)
	repo := r.repo("app.git", "one")
	id := repo.ID("main")
	repo.Git("update-ref", "refs/heads/gone", id.String())
	path, _ := git.ParseRepoPath("app")
	w := r.watch(watch.From{Path: path})
	if e := w.next(); !e.Reset {
		t.Fatalf("the first event is %+v", e)
	}
	told := 0
	r.OnChange(func(git.RepoPath) { told++ })
	reply := &reporting{before: func() {
		if told == 0 {
			t.Error("at the time of the report nobody in the process was told")
		}
		if refs, err := r.refs("app"); err != nil || strings.Contains(refs, "gone") {
			t.Errorf("at the time of the report the refs are %s (%v)", refs, err)
		}
		e := w.next()
		if len(e.Changes) != 1 || e.Changes[0].Old.Name != "refs/heads/gone" || !e.Changes[0].New.ID.IsZero() {
			t.Errorf("at the time of the report the event is %+v", e)
		}
	}}
	if err := r.push("app", reply, fmt.Sprintf("%s %s refs/heads/gone", id, strings.Repeat("0", 40))); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(reply.String(), "ok refs/heads/gone") {
		t.Errorf("the report is %q", reply.String())
	}
	w.end()
}

func TestPushesTurnedOff(t *testing.T) {
	t.Parallel()
	r := newPushed(t)
	repo := r.repo("app.git", "one")
	id := repo.ID("main")
	repo.Git("config", "hook.x.event", "update")
	for _, config := range []string{"http.receivepack false", "hook.x.command true"} {
		key, value, _ := strings.Cut(config, " ")
		repo.Git("config", key, value)
		if err := r.push("app", &answer{}, fmt.Sprintf("%s %s refs/heads/main", id, strings.Repeat("0", 40))); !fault.Is(err,
			fault.Denied) {
			t.Errorf("with %s: %v", config, err)
		}
		path, _ := git.ParseRepoPath("app")
		if _, err := r.Advertise(context.Background(), path, node.Session{Service: protocol.ReceivePack},
			&answer{}); !fault.Is(err, fault.Denied) {
			t.Errorf("with %s: %v", config, err)
		}
		repo.Git("config", "--unset", key)
	}
	if err := newRoot(t, storage.Options{}).push("app", &answer{}); !fault.Is(err, fault.Denied) {
		t.Errorf("without anybody who takes pushes: %v", err)
	}
}

func TestCurrent(t *testing.T) {
	t.Parallel()
	r := newPushed(t)
	repo := r.repo("app.git", "one")
	repo.Git("config", "uploadpack.hideRefs", "refs/internal")
	repo.Git("update-ref", "refs/internal/x", "main")
	path, _ := git.ParseRepoPath("app")
	for ref, want := range map[git.RefName]git.ObjectID{"refs/heads/main": repo.ID("main"),
		"refs/internal/x": repo.ID("main"), "refs/heads/gone": {}} {
		if got, err := r.RefValue(context.Background(), path, ref); err != nil || got != want {
			t.Errorf("%s is %s, %v", ref, got, err)
		}
	}
	path, _ = git.ParseRepoPath("nowhere")
	if _, err := r.RefValue(context.Background(), path, "refs/heads/main"); !fault.Is(err, fault.NotFound) {
		t.Errorf("of no repository: %v", err)
	}
}
