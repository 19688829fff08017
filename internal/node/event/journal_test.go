package event

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openJournal(t *testing.T, dir string) *Journal {
	t.Helper()
	j, err := OpenJournal(JournalOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func id(c string) git.ObjectID {
	o, err := git.ParseObjectID(strings.Repeat(c, 40))
	if err != nil {
		panic(err)
	}
	return o
}

// push changes main from one ID to another.
func push(name, old, new string) *receivepack.Push {
	repo, _ := git.ParseRepoPath("team/gr\xfcn.git")
	return &receivepack.Push{ID: name, Repo: repo, Pusher: node.Pusher{Name: "a\"da", Address: "192.0.2.1"},
		Options: []string{"\"gr\xfc\xdfe"}, Updates: []receivepack.Update{{Ref: "refs/heads/m\xe4rz", Old: id(old),
			New: id(new), Kind: receivepack.Forced}}}
}

func do(t *testing.T, j *Journal, p *receivepack.Push, made []receivepack.Update) {
	t.Helper()
	if err := errors.Join(j.Begin(p), j.End(receivepack.Result{Push: p, Made: made})); err != nil {
		t.Fatal(err)
	}
}

// ids reads all events after a position in pages.
func ids(t *testing.T, l Log, after string, page int) (list []string) {
	t.Helper()
	for {
		events, next, err := l.Read(t.Context(), after, page)
		if err != nil {
			t.Fatalf("Read(%q): %v", after, err)
		}
		if len(events) == 0 {
			return list
		}
		for _, e := range events {
			list = append(list, e.ID)
		}
		if last := events[len(events)-1].Position; last != next {
			t.Errorf("the last event has the position %q, next is %q", last, next)
		}
		after = next
	}
}

func TestJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openJournal(t, dir)
	_, start, err := j.Read(t.Context(), Now, 10)
	changed := j.Changed()
	do(t, j, push("P1", "1", "2"), nil) // changed nothing
	first := push("P2", "1", "2")
	do(t, j, first, first.Updates)
	<-changed
	err = errors.Join(err, j.Change(&Event{Kind: Create, Repository: "x"}, func() error { return nil }))
	failure := errors.New("it exists")
	failed := j.Change(&Event{Kind: Create, Repository: "y"}, func() error { return failure })
	if failed != failure || err != nil {
		t.Errorf("Change: %v, want %v; %v", failed, failure, err)
	}
	j.Close()
	j = openJournal(t, dir)
	events, _, err := j.Read(t.Context(), start, 10)
	if err != nil || len(events) != 2 || events[1].Kind != Create || events[1].Repository != "x" || events[0].ID != "P2" {
		t.Fatalf("Read: %+v, %v", events, err)
	}
	again, err := events[0].Push()
	if err != nil || events[0].Repository != "team/gr\xfcn" || again.Options[0] != first.Options[0] ||
		again.Pusher.Name != first.Pusher.Name || again.Pusher.Address != first.Pusher.Address ||
		again.Updates[0] != first.Updates[0] {
		t.Errorf("the push is %+v, %v, want %+v", again, err, first)
	}
	for after, kind := range map[string]fault.Kind{"other-1": fault.OutOfRange, j.position(99): fault.OutOfRange,
		"x": fault.Invalid, j.id + "-": fault.Invalid} {
		if _, _, err := j.Read(t.Context(), after, 1); !fault.Is(err, kind) {
			t.Errorf("Read(%q): %v, want %v", after, err, kind)
		}
	}
}

// Events of many files are read in pages, and those in removed files are out of range.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openJournal(t, dir)
	j.maxSize = 10_000
	running := push("Running", "1", "2")
	if err := j.Begin(running); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i := range 60 {
		group.Go(func() {
			p := push(fmt.Sprint("P", i), "1", "2")
			p.Options = []string{strings.Repeat("x", 500)}
			if err := errors.Join(j.Begin(p), j.End(receivepack.Result{Push: p, Made: p.Updates})); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	if got := ids(t, j, "", 7); len(got) != 60 || len(files) < 3 {
		t.Errorf("%d events in %d files, want 60", len(got), len(files))
	}
	j.Close()
	j = openJournal(t, dir)
	if pending := j.pending(); len(pending) != 1 || pending[0].ID != "Running" {
		t.Errorf("pending: %d changes", len(pending))
	}
	old := time.Now().Add(-31 * 24 * time.Hour)
	if err := os.Chtimes(files[0], old, old); err != nil {
		t.Fatal(err)
	}
	j.mu.Lock()
	j.removeOld()
	j.mu.Unlock()
	if _, _, err := j.Read(t.Context(), j.position(1), 1); !fault.Is(err, fault.OutOfRange) ||
		!strings.Contains(fault.Message(err), `position "now"`) {
		t.Errorf("Read of a removed event: %v", err)
	}
	if got := len(ids(t, j, "", 100)); got == 0 || got >= 60 {
		t.Errorf("%d events are left", got)
	}
}

// While a new file cannot be made, no event follows in the full one: it would be lost if the new file exists after all.
func TestNoNewFile(t *testing.T) {
	t.Parallel()
	j := openJournal(t, t.TempDir())
	p := push("P0", "1", "2")
	do(t, j, p, p.Updates)
	j.maxSize = 10
	if err := os.Mkdir(j.path(2), 0o700); err != nil {
		t.Fatal(err)
	}
	p = push("P1", "1", "2")
	for range 2 {
		if err := j.Begin(p); !fault.Is(err, fault.Unavailable) {
			t.Errorf("Begin without a new file: %v, want unavailable", err)
		}
	}
	if err := os.Remove(j.path(2)); err != nil {
		t.Fatal(err)
	}
	do(t, j, p, p.Updates)
	if got := strings.Join(ids(t, j, "", 10), " "); got != "P0 P1" {
		t.Errorf("events %s", got)
	}
}

// An incomplete line at the end of a file, from a crash, is removed. Other damage moves the journal aside.
func TestDamage(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "events")
	j := openJournal(t, dir)
	p := push("P", "1", "2")
	do(t, j, p, p.Updates)
	path := j.path(1)
	j.Close()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := len(text) - 40; i < len(text); i++ { // the last line has more bytes
		if err := os.WriteFile(path, append(text[:i:i], 0, 0), 0o600); err != nil {
			t.Fatal(err)
		}
		j := openJournal(t, dir)
		if pending := j.pending(); len(pending) != 1 || len(ids(t, j, "", 1)) != 0 {
			t.Errorf("with %d bytes: %v", i, pending)
		}
		j.Close()
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "event", "\x00\x00", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	j = openJournal(t, dir)
	if aside, _ := filepath.Glob(dir + ".damaged-*"); len(aside) != 1 || len(ids(t, j, "", 1)) != 0 {
		t.Errorf("set aside: %v", aside)
	}
}

// refs are the refs of repositories for Recover.
type refs func(repo, ref string) (git.ObjectID, error)

func (r refs) RefValue(_ context.Context, repo git.RepoPath, ref git.RefName) (git.ObjectID, error) {
	return r(repo.String(), string(ref))
}

func (r refs) Classify(_ context.Context, _ git.RepoPath, updates []receivepack.Update) ([]receivepack.Update, error) {
	for i := range updates {
		updates[i].Kind = receivepack.FastForward
	}
	return updates, nil
}

// A crash between Begin and End is resolved by the state of the repositories.
func TestRecover(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openJournal(t, dir)
	pushes := []*receivepack.Push{push("Undone", "1", "a"), push("First", "1", "2"), push("Second", "2", "3"),
		push("Stale", "9", "b"), push("Alive", "3", "4")}
	for _, name := range []string{"gone", "broken"} {
		p := push(name, "1", "2")
		p.Repo, _ = git.ParseRepoPath(name)
		pushes = append(pushes, p)
	}
	deleted := push("Deleted", "1", "2")
	deleted.Updates = []receivepack.Update{{Ref: "refs/heads/old", Old: id("5")}, {Ref: "refs/heads/kept", Old: id("6")}}
	if err := j.Begin(append(pushes, deleted)...); err != nil {
		t.Fatal(err)
	}
	for kind, repo := range map[Kind]string{Create: "gone", Delete: "gone", Rename: "team/grün"} {
		if err := j.append(line{Begin: &Event{ID: string(kind), Kind: kind, Repository: git.Text(repo)}}); err != nil {
			t.Fatal(err)
		}
	}
	j.Close()
	j = openJournal(t, dir)
	j.Recover(t.Context(), []string{"Alive"}, refs(func(repo, ref string) (git.ObjectID, error) {
		switch {
		case repo == "gone":
			return git.ObjectID{}, fault.New(fault.NotFound, "no repository")
		case repo == "broken":
			return git.ObjectID{}, errors.New("the disk is away")
		case ref == "refs/heads/m\xe4rz":
			return id("3"), nil
		case ref == "refs/heads/kept":
			return id("6"), nil
		}
		return git.ObjectID{}, nil
	}))
	got := map[string]int{}
	events, _, err := j.Read(t.Context(), "", 100)
	for _, e := range events {
		got[e.ID] = len(e.Refs)
	}
	want := map[string]int{"First": 1, "Second": 1, "Deleted": 1, "delete": 0, "rename": 0}
	if fmt.Sprint(got) != fmt.Sprint(want) || len(events) != len(want) || err != nil ||
		events[0].Refs[0].Kind != receivepack.FastForward {
		t.Errorf("events %v, %v, want %v", got, err, want)
	}
	left := ""
	for _, e := range j.pending() {
		left += e.ID + " "
	}
	if left != "Alive broken " {
		t.Errorf("pending: %s", left)
	}
}
