package uploadpack

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node"
)

// formerWorld is a repository whose branch moves, and a server that lists its refs.
type formerWorld struct {
	t      *testing.T
	git    *gittest.Repo
	server *Server
}

func newFormerWorld(t *testing.T, grace string) *formerWorld {
	g := gittest.Init(t)
	g.Git("update-ref", "refs/heads/main", g.Commit("main").String())
	g.Git("config", "uploadpack.grace", grace)
	return &formerWorld{t, g, New(&asked{}, Options{Wants: WantsReachable})}
}

// move sets a branch to a new commit without parents, and returns it.
func (w *formerWorld) move(branch, text string) git.ObjectID {
	id := w.git.Commit(text)
	w.git.Git("update-ref", branch, id.String())
	return id
}

func (w *formerWorld) list() {
	w.t.Helper()
	session := node.Session{Version: 0, Stateless: true}
	if _, err := w.server.Advertise(w.t.Context(), openRepo(w.t, w.git.Dir), session, "", newRecorder()); err != nil {
		w.t.Fatal(err)
	}
}

// check wants a commit and a blob of it.
func (w *formerWorld) check(what string, commit git.ObjectID, want fault.Kind) {
	w.t.Helper()
	r := openRepo(w.t, w.git.Dir)
	for _, id := range []git.ObjectID{commit, w.git.ID(commit.String() + ":file")} {
		q := testRequest{command: "fetch", args: []string{"want " + id.String(), "done"}}
		_, _, err := (&testServer{repo: r}).serve(w.server, q.bytes(r.Format))
		if fault.KindOf(err) != want {
			w.t.Errorf("%s: want of %s: %v, want kind %v", what, id, err, want)
		}
	}
}

const madeOfFormer = fault.Exhausted // a pack would be made

// Listed objects stay fetchable after a force push or a deletion of their branch. Others do not.
func TestFormerValues(t *testing.T) {
	t.Parallel()
	w := newFormerWorld(t, "1h")
	unlisted := w.move("refs/heads/bot", "unlisted")
	first := w.move("refs/heads/bot", "first")
	w.list()
	second := w.move("refs/heads/bot", "second")
	w.check("force push", first, madeOfFormer)
	w.git.Git("update-ref", "-d", "refs/heads/bot")
	w.check("deletion", second, madeOfFormer)
	w.check("two changes", first, madeOfFormer)
	w.check("never listed", unlisted, fault.Denied)

	// A push through the server notes the refs before it.
	third := w.move("refs/heads/bot", "third")
	w.note(t)
	w.move("refs/heads/bot", "fourth")
	w.check("noted", third, madeOfFormer)

	// Waiting for an object means present refs only.
	visible, err := w.server.Visible(t.Context(), openRepo(t, w.git.Dir),
		func() (func(), error) { return func() {}, nil }, third)
	if visible || err != nil {
		t.Errorf("Visible = %t, %v, want false", visible, err)
	}

	// An administrator can take it back at once.
	w.git.Git("config", "transfer.hideRefs", "refs/heads/bot")
	w.check("hidden", first, fault.Denied)
	w.git.Git("config", "--unset", "transfer.hideRefs")
	w.check("not hidden any more", first, madeOfFormer)
	w.git.Git("config", "uploadpack.grace", "0")
	w.check("grace of the repository turned off", first, fault.Denied)
}

func TestFormerValuesExpire(t *testing.T) {
	t.Parallel()
	w := newFormerWorld(t, "1ns")
	first := w.move("refs/heads/bot", "first")
	w.list()
	w.move("refs/heads/bot", "second")
	w.check("after the grace", first, fault.Denied)
}

// Another process continues with the values of the one before. A repository that was made again has none.
func TestFormerValuesAfterRestart(t *testing.T) {
	t.Parallel()
	w := newFormerWorld(t, "1h")
	first := w.move("refs/heads/bot", "first")
	w.list()
	w.move("refs/heads/bot", "second")
	w.list()
	file := filepath.Join(t.TempDir(), "former")
	for _, want := range []fault.Kind{madeOfFormer, fault.Denied} {
		if err := w.server.SaveFormer(file); err != nil {
			t.Fatal(err)
		}
		w.server = New(&asked{}, Options{Wants: WantsReachable})
		if err := w.server.LoadFormer(file); err != nil {
			t.Fatal(err)
		}
		w.check("after a restart", first, want)
		copied := w.git.Dir + ".again"
		if err := os.CopyFS(copied, os.DirFS(w.git.Dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(w.git.Dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(copied, w.git.Dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.server.LoadFormer(file); err == nil {
		t.Error("a damaged file is not an error")
	}
}

func TestFormerValuesAreBounded(t *testing.T) {
	t.Parallel()
	h := &refHistory{values: map[formerValue]time.Time{}}
	now := time.Now()
	for i := range maxFormerValues*11/10 + 10 {
		name := git.RefName(fmt.Sprint("refs/heads/", i))
		h.values[formerValue{Name: name}] = now.Add(-time.Duration(i) * time.Millisecond)
	}
	if err := h.add(&refs.Snapshot{}, now, time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, has := h.values[formerValue{Name: "refs/heads/0"}]; !has || len(h.values) != maxFormerValues {
		t.Errorf("%d values, the newest among them: %t", len(h.values), has)
	}
	var f formerValues
	for i := range maxHistories + 1 {
		f.of(fmt.Sprint(i), time.Hour)
	}
	if len(f.histories) != maxHistories/2+1 {
		t.Errorf("%d histories", len(f.histories))
	}
	for _, h := range f.histories {
		h.used = now.Add(-time.Hour)
	}
	f.swept = time.Time{}
	if f.of("another", time.Hour); len(f.histories) != 1 {
		t.Errorf("%d histories after the grace, want 1", len(f.histories))
	}
}

// Listings and fetches work although another program has truncated the packed-refs file that was listed before. Later
// changes are known again.
func TestFormerValuesOfDamagedRefs(t *testing.T) {
	t.Parallel()
	w := newFormerWorld(t, "1h")
	tip := w.git.Commit("tip").String()
	var refs strings.Builder
	for i := range 500 { // the file is mapped
		fmt.Fprintf(&refs, "create refs/heads/%d %s\n", i, tip)
	}
	w.git.GitIn(refs.String(), "update-ref", "--stdin")
	w.git.Git("pack-refs", "--all")
	var log bytes.Buffer
	w.server = New(&asked{}, Options{Wants: WantsReachable, Log: slog.New(slog.NewTextHandler(&log, nil))})
	w.list()
	file := filepath.Join(w.git.Dir, "packed-refs")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 5000); err != nil {
		t.Fatal(err)
	}
	if err := disk.ReplaceFile(file, content); err != nil {
		t.Fatal(err)
	}
	w.note(t)
	w.list()
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, w.git.Dir) {
		t.Errorf("log = %q, want one line that names the repository", text)
	}
	first := w.move("refs/heads/bot", "first")
	w.list()
	w.move("refs/heads/bot", "second")
	w.check("after the damage", first, madeOfFormer)
}

// note notes the refs, as a push does.
func (w *formerWorld) note(t *testing.T) {
	t.Helper()
	r := openRepo(t, w.git.Dir)
	snap, err := r.Refs.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.server.NoteRefs(r, snap)
}
