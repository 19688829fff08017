package receivepack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

// testShadow is a Shadow that commits to the repository of its world by git update-ref.
type testShadow struct {
	w          *world
	repo       *repo.Repo
	quarantine atomic.Value // string, as given to Quarantined
	proposal   Proposal
	refuse     map[string]*Refusal // by ref
	err        error               // of Commit
}

// newShadow makes a shadow of the repository. Its refs are packed.
func (w *world) newShadow() *testShadow {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "shadow.git")
	for _, sub := range []string{"objects/info", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			w.t.Error(err)
		}
	}
	text := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			w.t.Error(err)
		}
	}
	for _, name := range []string{"HEAD", "config"} {
		content, err := os.ReadFile(filepath.Join(w.Dir, name))
		if err != nil {
			w.t.Error(err)
		}
		text(name, string(content))
	}
	if refs := w.Git("for-each-ref", "--format=%(objectname) %(refname)"); refs != "" {
		text("packed-refs", refs+"\n")
	}
	text("objects/info/alternates", filepath.Join(w.Dir, "objects")+"\n")
	r, err := repo.Open(dir, repo.Options{})
	if err != nil {
		w.t.Error(err)
	}
	s := &testShadow{w: w, repo: r}
	w.shadow(s)
	return s
}

func (s *testShadow) Repo() *repo.Repo       { return s.repo }
func (s *testShadow) Own() string            { return "" }
func (s *testShadow) Quarantined(dir string) { s.quarantine.Store(dir) }
func (s *testShadow) Close()                 { s.repo.Close() }

func (s *testShadow) Commit(_ context.Context, proposals []Proposal) []CommitResult {
	p := proposals[0]
	s.proposal = p
	result := CommitResult{Refused: make([]*Refusal, len(p.Updates)), Stored: node.Stored{Record: 7, Tries: 1}}
	if s.err != nil {
		return []CommitResult{{Err: s.err}}
	}
	var packs []string
	packs, result.Err = filepath.Glob(filepath.Join(s.repo.Dir, "objects/pack/*"))
	for _, path := range packs {
		result.Err = os.Rename(path, filepath.Join(s.w.Dir, "objects/pack", filepath.Base(path)))
	}
	for i, u := range p.Updates {
		if result.Refused[i] = s.refuse[string(u.Ref)]; result.Refused[i] == nil {
			s.w.Git("update-ref", string(u.Ref), u.New.String())
		}
	}
	return []CommitResult{result}
}

func TestPushByCommit(t *testing.T) {
	t.Parallel()
	var shadow *testShadow
	first := sync.OnceFunc(func() {
		gittest.WaitFor(t, "the quarantine", func() bool { return shadow.quarantine.Load() != nil })
	})
	w := newWorld(t, Options{Decider: decider(func(context.Context, *Push) error {
		first()
		return nil
	})})
	refuse := map[string]*Refusal{}
	w.shadow = func(s *testShadow) { shadow, s.refuse = s, refuse }
	c := w.clone()
	w.mustPush(c, "main", "main:refs/heads/topic")
	if len(shadow.proposal.Updates) != 2 || shadow.proposal.Atomic {
		t.Errorf("Commit got %+v, want two updates", shadow.proposal)
	}
	if got := w.outcomes[0].Stored; got.Record != 7 {
		t.Errorf("outcome has %+v, want record 7", got)
	}

	c.Git("update-ref", "refs/heads/main", c.Commit("next", c.ID("main")).String())
	refuse["refs/heads/topic"] = RefusedValue
	before := w.changed()
	out, err := w.push(c, "main", "main:topic")
	if err == nil || !strings.Contains(out, "[remote rejected] main -> topic (changed meanwhile)") {
		t.Errorf("push of a ref that changed meanwhile: %v\n%s", err, out)
	}
	want := fmt.Sprintf("refs/heads/main %.7s %.7s", c.ID("main~1"), c.ID("main"))
	if got := strings.TrimPrefix(w.changed(), before+"\n"); got != want {
		t.Errorf("Changed got %q, want %q", got, want)
	}
	if last := w.outcomes[1]; last.Reason != reasonConflict || last.Push.Updates[0].Result != node.UpdateOK ||
		last.Push.Updates[1].Result != "changed meanwhile" {
		t.Errorf("outcome = %+v, want a conflict of the second ref", last)
	}
	w.mustPush(c, "--atomic", "main:a", "main:b")
	if !shadow.proposal.Atomic {
		t.Error("the proposal of an atomic push is not atomic")
	}
	w.mustPush(c, ":refs/heads/missing")
	w.clean()
}

func TestPushByCommitFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	var failure error
	w.shadow = func(s *testShadow) { s.err = failure }
	c := w.clone()
	failure = fault.New(fault.Unavailable, "the storage is away")
	if out, err := w.push(c, "main"); err == nil || !strings.Contains(out, "the storage is away") || w.refs() != "" {
		t.Errorf("push without a commit: %v\n%s", err, out)
	}
	failure = fmt.Errorf("no answer: %w", ErrUnknown)
	out, err := w.push(c, "main")
	if err == nil || !strings.Contains(out, "fetch, and check") || strings.Contains(out, "rejected") {
		t.Errorf("push with an unknown result: %v\n%s", err, out)
	}
	if got := w.outcomes[1].Push.Updates[0].Result; got != node.UpdateUnknown {
		t.Errorf("result = %q, want %q", got, node.UpdateUnknown)
	}
	if got := w.outcomes[0].Push.Updates[0].Result; got != node.UpdateUnchanged {
		t.Errorf("result = %q, want %q", got, node.UpdateUnchanged)
	}
}

func TestRefuseInReport(t *testing.T) {
	t.Parallel()
	report := func(lines ...string) string {
		var b []byte
		for _, line := range lines {
			b = pktline.AppendLine(b, line)
		}
		return string(pktline.AppendFlush(b))
	}
	got := refuseInReport([]byte(report("unpack ok", "ok refs/for/x", "option refname refs/heads/a", "option new-oid 1",
		"ok refs/for/x", "option refname refs/heads/b", "ng refs/heads/c no", "ok refs/heads/d")),
		map[string][]string{"refs/for/x": {"changed meanwhile", ""}, "refs/heads/d": {"quota exceeded"}})
	want := report("unpack ok", "ng refs/for/x changed meanwhile", "ok refs/for/x", "option refname refs/heads/b",
		"ng refs/heads/c no", "ng refs/heads/d quota exceeded")
	if string(got) != want {
		t.Errorf("refuseInReport() = %q, want %q", got, want)
	}
}
