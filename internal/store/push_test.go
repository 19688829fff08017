package store

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// gitNode is a node of a store that takes pushes of git by HTTP.
type gitNode struct {
	*Store
	t    testing.TB
	node *storage.Node
	url  string // of the repositories
}

// newGitNode starts one more node on a bucket.
func newGitNode(t *testing.T, b bucket.Bucket, o receivepack.Options, change ...func(*Options)) *gitNode {
	t.Helper()
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		receivepack.ClassReceive: {Slots: 8, Queue: 100}, receivepack.ClassHook: {Slots: 8, Queue: 100},
		places.ClassMaintain: {Slots: 1, Queue: 10},
	}})
	if err != nil {
		t.Fatal(err)
	}
	o.Runner, o.Agent, o.Scripts, o.Journal, o.MaxOptions = runner, "test", t.TempDir(), t.TempDir(), 10
	pushes, err := receivepack.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := pushes.Recovery().Start(nil); err != nil {
		t.Fatal(err)
	}
	n := &gitNode{Store: newNode(t, b, change...), t: t}
	n.node, err = storage.New(uploadpack.New(nil, uploadpack.Options{}), storage.Options{
		Root: n.options.Cache.Root, Places: n.Store, Pushes: pushes, Runner: runner,
		LFS: &objects.Options{Copies: true}, TipPack: true})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(http.HandlerFunc(n.serve))
	n.url = front.URL + "/"
	t.Cleanup(func() {
		front.Close()
		pushes.Close()
		if err := errors.Join(n.node.Close(), runner.Close(context.Background())); err != nil {
			t.Error(err)
		}
		gittest.WaitFor(t, "the removal of all shadows", func() bool {
			left, err := os.ReadDir(filepath.Join(n.options.Cache.Root, shadowsDir))
			return err == nil && len(left) == 0
		})
	})
	return n
}

// serve is as much of the smart HTTP protocol as a push needs.
func (n *gitNode) serve(w http.ResponseWriter, r *http.Request) {
	name, isAdvertisement := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/"), "/info/refs")
	name = strings.TrimSuffix(name, "/git-receive-pack")
	session := node.Session{Service: protocol.ReceivePack, Stateless: true}
	out := &httpResponse{ResponseWriter: w}
	var err error
	if isAdvertisement {
		w.Header().Set("Content-Type", "application/x-git-receive-pack-advertisement")
		out.first = pktline.AppendFlush(pktline.AppendLine(nil, "# service=git-receive-pack"))
		_, err = n.node.Advertise(r.Context(), repoPath(name), session, out)
	} else {
		w.Header().Set("Content-Type", "application/x-git-receive-pack-result")
		_, err = n.node.ReceivePack(r.Context(), repoPath(name), session, node.Pusher{Name: "alice"}, r.Body, out)
	}
	if _, isReported := errors.AsType[*node.ReportedError](err); err != nil && !isReported && !out.begun {
		http.Error(w, fault.Message(err), http.StatusServiceUnavailable)
	}
}

// A want by name needs a check for changes at each fetch, so it is not offered.
func TestNoWantsByName(t *testing.T) {
	t.Parallel()
	n := newGitNode(t, newBucket(t), receivepack.Options{})
	if err := n.ImportDir(t.Context(), repoPath("app"), gittest.Init(t).Dir); err != nil {
		t.Fatal(err)
	}
	response := httptest.NewRecorder()
	session := node.Session{Service: protocol.UploadPack, Version: protocol.V2, Stateless: true}
	_, err := n.node.Advertise(t.Context(), repoPath("app"), session, &httpResponse{ResponseWriter: response})
	got := response.Body.String()
	if err != nil || !strings.Contains(got, "fetch=") || strings.Contains(got, "ref-in-want") {
		t.Errorf("Advertise() = %q, %v, want fetch without ref-in-want", got, err)
	}
}

// httpResponse is a node.ResponseWriter.
type httpResponse struct {
	http.ResponseWriter
	first []byte // written before all else
	begun bool
}

func (*httpResponse) SetLength(int64)           {}
func (*httpResponse) StartBulk(bool) error      { return nil }
func (*httpResponse) ReserveMemory(int64) error { return nil }
func (r *httpResponse) Flush() error            { return nil }

func (r *httpResponse) Write(b []byte) (int, error) {
	if r.begun = true; r.first != nil {
		first := r.first
		r.first = nil
		if _, err := r.ResponseWriter.Write(first); err != nil {
			return 0, err
		}
	}
	return r.ResponseWriter.Write(b)
}

// push runs git push in a clone.
func (n *gitNode) push(clone *gittest.Repo, path string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"push", n.url + path}, args...)...)
	cmd.Dir, cmd.Env = clone.Dir, gittest.Env()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (n *gitNode) mustPush(clone *gittest.Repo, path string, args ...string) string {
	n.t.Helper()
	out, err := n.push(clone, path, args...)
	if err != nil {
		n.t.Fatalf("git push %q: %v\n%s", args, err, out)
	}
	return out
}

// copied returns the local copy of a repository with the head's refs and all packs, as git reads it.
func (n *gitNode) copied(path string) *gittest.Repo {
	n.t.Helper()
	p, err := n.Acquire(context.Background(), repoPath(path))
	if err != nil {
		n.t.Fatal(err)
	}
	defer p.Release()
	state, err := p.(*place).current(context.Background())
	if err != nil {
		n.t.Fatal(err)
	}
	done, err := p.(*place).Use(context.Background(), nil)
	if err != nil {
		n.t.Fatal(err)
	}
	defer done()
	r := gittest.At(n.t, p.(*place).Dir())
	if err := writePacked(filepath.Join(p.(*place).Dir(), "packed-refs.test"), state.layers); err != nil {
		n.t.Fatal(err)
	}
	err = os.Rename(filepath.Join(r.Dir, "packed-refs.test"), filepath.Join(r.Dir, "packed-refs"))
	if err != nil {
		n.t.Fatal(err)
	}
	return r
}

const refFormat = "--format=%(refname) %(objectname) %(*objectname)"

// same checks that the repository on a node has the refs of a clone and is complete.
func (n *gitNode) same(path string, clone *gittest.Repo) {
	n.t.Helper()
	r := n.copied(path)
	if got, want := r.Git("for-each-ref", refFormat), clone.Git("for-each-ref", refFormat); got != want {
		n.t.Errorf("refs on the node:\n%s\nwant:\n%s", got, want)
	}
	r.Git("fsck", "--full", "--strict")
}

// newClone makes a repository with a branch and an annotated tag.
func newClone(t *testing.T, init ...string) *gittest.Repo {
	t.Helper()
	c := gittest.InitAt(t, filepath.Join(t.TempDir(), "clone.git"), init...)
	c.Git("update-ref", "refs/heads/main", c.Commit("first").String())
	c.Git("tag", "-a", "-m", "one", "v1", "refs/heads/main")
	return c
}

// Pushes to one node are on the other, with all that git push can do.
func TestPush(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{})
	create(t, a.Store, "team/app")
	clone := newClone(t)
	a.mustPush(clone, "team/app", "--mirror")
	a.same("team/app", clone)
	c.same("team/app", clone)

	next := func(branch string, args ...string) {
		clone.Git("update-ref", "refs/heads/"+branch, clone.Commit(strings.Join(args, " "), clone.ID("main")).String())
	}
	next("main")
	c.mustPush(clone, "team/app", "main", "main:refs/heads/d/e")
	clone.Git("update-ref", "refs/heads/d/e", "main")
	a.same("team/app", clone)

	next("topic")
	a.mustPush(clone, "team/app", "--atomic", "topic", "main:refs/heads/other", ":refs/heads/d/e")
	clone.Git("update-ref", "-d", "refs/heads/d/e")
	clone.Git("update-ref", "refs/heads/other", "main")
	c.mustPush(clone, "team/app", "main:refs/heads/d") // a name below which another ref was
	clone.Git("update-ref", "refs/heads/d", "main")
	a.same("team/app", clone)
	c.same("team/app", clone)

	stale := clone.ID("main~1").String()
	if out, err := a.push(clone, "team/app", "--force-with-lease=topic:"+stale, "main:topic"); err == nil {
		t.Errorf("a push with a stale lease succeeded:\n%s", out)
	}
	a.mustPush(clone, "team/app", "--force-with-lease=topic:"+clone.ID("topic").String(), "+main:topic", "-o", "x=y")
	clone.Git("update-ref", "refs/heads/topic", "main")
	a.mustPush(clone, "team/app", ":refs/heads/missing")
	if out, err := a.push(clone, "team/app", "main:refs/heads/d/below"); err == nil {
		t.Errorf("a ref below another one was created:\n%s", out)
	}
	out, err := a.push(clone, "team/app", ":main")
	if err == nil || !strings.Contains(out, "deletion of the current branch") {
		t.Errorf("the branch of HEAD was deleted: %v\n%s", err, out)
	}
	a.same("team/app", clone)
	c.same("team/app", clone)
}

func TestPushSHA256(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n := newGitNode(t, b, receivepack.Options{})
	if err := n.Create(t.Context(), repoPath("x"), git.SHA256, "refs/heads/trunk", "", nil); err != nil {
		t.Fatal(err)
	}
	clone := newClone(t, "--object-format=sha256")
	n.mustPush(clone, "x", "--mirror")
	n.same("x", clone)
	if got := n.acquired("x").known().record.Head; got != "refs/heads/main" {
		t.Errorf("HEAD is %s after the first push, want refs/heads/main", got)
	}
}

func (n *gitNode) acquired(path string) *place {
	n.t.Helper()
	p, err := n.Acquire(context.Background(), repoPath(path))
	if err != nil {
		n.t.Fatal(err)
	}
	defer p.Release()
	return p.(*place)
}

// A push whose ref another node has changed meanwhile is refused in git's report. The other refs of the push change.
func TestPushLoses(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	var other *gitNode
	decide := decider(func(p *receivepack.Push) error {
		setRef(t, other.Store, "x", "refs/heads/main", id1)
		return nil
	})
	other = newGitNode(t, b, receivepack.Options{})
	n := newGitNode(t, b, receivepack.Options{Decider: decide})
	create(t, n.Store, "x")
	clone := newClone(t)
	out, err := n.push(clone, "x", "main", "main:refs/heads/topic")
	if err == nil || !strings.Contains(out, "[remote rejected] main -> main (changed meanwhile)") ||
		!strings.Contains(out, "[new branch]      main -> topic") {
		t.Errorf("push: %v\n%s", err, out)
	}
	record := n.acquired("x").known().record
	if len(record.Packs) != 1 || len(record.Pushes) != 1 || record.Pushes[0].By != "alice" || record.Pushes[0].Refs != 1 {
		t.Errorf("the record has %d packs and pushes %+v, want one of alice with one ref", len(record.Packs), record.Pushes)
	}
	if out, err := n.push(clone, "x", "--atomic", "main:refs/heads/a", "+main:refs/heads/main"); err == nil {
		t.Errorf("an atomic push lost only in part:\n%s", out)
	}
}

// Hooks of repositories never run: not those that a record configures, nor those in the files of a local copy.
func TestPushRunsNoHookOfRecord(t *testing.T) {
	t.Parallel()
	n := newGitNode(t, newBucket(t), receivepack.Options{RepositoryHooks: receivepack.RunHooks})
	create(t, n.Store, "x")
	clone, proof := newClone(t), filepath.Join(t.TempDir(), "ran")
	addSettings(t, n.Store, "x", replog.Setting{Key: "hook.x.command", Value: "touch " + proof + " #"},
		replog.Setting{Key: "hook.x.event", Value: "pre-receive"})
	n.mustPush(clone, "x", "main")
	local := n.copied("x")
	if got := local.Git("config", "--local", "--list"); strings.Contains(got, "hook.") {
		t.Errorf("the configuration of the local copy is\n%s\nwant no hook", got)
	}
	local.Git("config", "hook.x.command", "touch "+proof+" #")
	local.Git("config", "hook.x.event", "pre-receive")
	n.mustPush(clone, "x", "main:topic")
	if _, err := os.Stat(proof); err == nil {
		t.Error("a hook of the repository ran")
	}
}

// A repository in a store has its whole history, even if its configuration allows that pushes cut it.
func TestPushOfCutHistory(t *testing.T) {
	t.Parallel()
	n := newGitNode(t, newBucket(t), receivepack.Options{})
	create(t, n.Store, "x")
	addSettings(t, n.Store, "x", replog.Setting{Key: "receive.shallowupdate", Value: "true"})
	clone, dir := newClone(t), filepath.Join(t.TempDir(), "cut.git")
	clone.Git("update-ref", "refs/heads/main", clone.Commit("second", clone.ID("main")).String())
	clone.Git("clone", "-q", "--bare", "--depth=1", "--branch=main", "file://"+clone.Dir, dir)
	if out, err := n.push(gittest.At(t, dir), "x", "main"); err == nil ||
		!strings.Contains(out, "shallow update not allowed") {
		t.Errorf("a push of a part of the history: %v\n%s", err, out)
	}
}

// A client may have its refs from another node, and objects that only that node knows.
func TestPushToAnotherNode(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{})
	create(t, a.Store, "x")
	clone := newClone(t)
	c.mustPush(clone, "x", "main")
	refOf(t, a.Store, "x", "refs/heads/main")
	clone.Git("update-ref", "refs/heads/main", clone.Commit("next", clone.ID("main")).String())
	c.mustPush(clone, "x", "main")
	s, err := a.acquired("x").Push(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	snapshot, err := s.Repo().Refs.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if ref, _, err := snapshot.Lookup("refs/heads/main"); err != nil || ref.ID != clone.ID("main") {
		t.Errorf("the shadow has main at %s, %v, want %s", ref.ID, err, clone.ID("main"))
	}
}

type decider func(p *receivepack.Push) error

func (d decider) Decide(_ context.Context, p *receivepack.Push) error { return d(p) }

// Keys that were condemned since the upload are not used: the pack is uploaded again.
func TestPushAfterGC(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	var n *gitNode
	n = newGitNode(t, b, receivepack.Options{Decider: decider(func(*receivepack.Push) error {
		p := n.acquired("x")
		if !gittest.Eventually(func() bool { return len(packKeys(b)) == 2 }) {
			t.Error("the upload did not begin before the hooks")
		}
		_, err := p.change(t.Context(), func(head *state) (*replog.Record, error) {
			next := head.record.Next(replog.KindCondemn, "n", time.Now())
			next.GC++
			return next, nil
		})
		return err
	})})
	create(t, n.Store, "x")
	clone := newClone(t)
	n.mustPush(clone, "x", "main")
	if got := packKeys(b); len(got) != 4 {
		t.Errorf("files of packs: %q, want two uploads of two", got)
	}
	record := n.acquired("x").known().record
	if len(record.Packs) != 1 {
		t.Errorf("%d packs, want 1", len(record.Packs))
	}
}

// Hooks run in the shadow. The objects that they write there are part of the push, and post-receive sees its refs.
func TestPushRunsHooks(t *testing.T) {
	t.Parallel()
	hooks, seen := t.TempDir(), filepath.Join(t.TempDir(), "seen")
	for name, script := range map[string]string{
		"pre-receive": "echo from the hook | git hash-object -w --stdin >&2",
		"update":      `test "$1" != refs/heads/refused`,
		"post-receive": "cat > " + seen + "; git cat-file -t main >> " + seen +
			"; echo from the hook | git hash-object --stdin | git cat-file --batch-check='%(objecttype)' >> " + seen,
	} {
		if err := os.WriteFile(filepath.Join(hooks, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n := newGitNode(t, newBucket(t), receivepack.Options{Hooks: hooks})
	create(t, n.Store, "x")
	clone := newClone(t)
	out, err := n.push(clone, "x", "main", "main:refs/heads/refused")
	if err == nil || !strings.Contains(out, "main -> refused (hook declined)") {
		t.Errorf("push: %v\n%s", err, out)
	}
	got, err := os.ReadFile(seen)
	want := strings.Repeat("0", 40) + " " + clone.ID("main").String() + " refs/heads/main\ncommit\nblob\n"
	if err != nil || string(got) != want {
		t.Errorf("post-receive saw %q, %v, want %q", got, err, want)
	}
	n.copied("x").Git("cat-file", "-e", clone.Blob("from the hook\n").String())
}

// packKeys returns the keys of the files of packs.
func packKeys(b *buckettest.Memory) (keys []string) {
	for _, key := range b.Keys() {
		if strings.Contains(key, "/packs/") {
			keys = append(keys, key)
		}
	}
	return keys
}

// While the store is down, pushes are refused before their pack is read.
func TestPushWithoutStore(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n := newGitNode(t, b, receivepack.Options{})
	create(t, n.Store, "x")
	clone := newClone(t)
	n.mustPush(clone, "x", "main")
	b.SetFaults(buckettest.Faults{Down: true})
	if out, err := n.push(clone, "x", "main:refs/heads/topic"); err == nil || !strings.Contains(out, "503") {
		t.Errorf("push without the store: %v\n%s", err, out)
	}
}
