package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/gc"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

func lfsObjectOf(content string) lfs.Object {
	return lfs.Object{OID: sha256.Sum256([]byte(content)), Size: int64(len(content))}
}

// upload uploads an object as a client does.
func (n *gitNode) upload(path, content string) (lfs.Object, error) {
	o := lfsObjectOf(content)
	_, _, err := n.node.LFSUpload(context.Background(), repoPath(path), node.Session{}, lfs.Upload{Object: o},
		strings.NewReader(content))
	return o, err
}

func (n *gitNode) mustUpload(path, content string) lfs.Object {
	n.t.Helper()
	o, err := n.upload(path, content)
	if err != nil {
		n.t.Fatalf("upload of %q: %v", content, err)
	}
	return o
}

// lfsResponse keeps what a client receives.
type lfsResponse struct{ bytes.Buffer }

func (*lfsResponse) SetLength(int64)           {}
func (*lfsResponse) StartBulk(bool) error      { return nil }
func (*lfsResponse) ReserveMemory(int64) error { return nil }
func (*lfsResponse) Flush() error              { return nil }

// download returns the content of an object and "hit" or "miss".
func (n *gitNode) download(path string, o lfs.Object) (content, pack string, err error) {
	var out lfsResponse
	outcome, err := n.node.LFSDownload(context.Background(), repoPath(path), node.Session{},
		lfs.Download{Object: o, Length: -1}, &out)
	return out.String(), outcome.LFS.Cache, err
}

func (n *gitNode) states(path string, isUpload bool, o ...lfs.Object) ([]lfs.State, error) {
	list, _, err := n.node.LFSBatch(context.Background(), repoPath(path), node.Session{},
		lfs.Batch{Upload: isUpload, Objects: o})
	states := make([]lfs.State, len(list))
	for i, s := range list {
		states[i] = s.State
	}
	return states, err
}

// An object that one node has stored is on the other, once for all clients, and no other repository has it.
func TestLFS(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{})
	create(t, a.Store, "app")
	create(t, a.Store, "other")
	content := strings.Repeat("large file ", 50_000)
	absent := lfsObjectOf("absent")
	if states, err := c.states("app", true, lfsObjectOf(content)); err != nil || states[0] != lfs.Missing {
		t.Errorf("state before the upload = %v, %v, want missing", states, err)
	}
	o := a.mustUpload("app", content)
	for _, n := range []*gitNode{a, c} {
		states, err := n.states("app", false, o, absent)
		if err != nil || !slices.Equal(states, []lfs.State{lfs.Present, lfs.Missing}) {
			t.Errorf("states = %v, %v, want present, missing", states, err)
		}
		if states, err := n.states("other", false, o); err != nil || states[0] != lfs.Missing {
			t.Errorf("state in another repository = %v, %v, want missing", states, err)
		}
	}
	if _, pack, err := a.download("app", o); err != nil || pack != "hit" {
		t.Errorf("download where it was uploaded = %q, %v, want a hit", pack, err)
	}
	before := b.Requests()["open"]
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			if got, _, err := c.download("app", o); err != nil || got != content {
				t.Errorf("download of %d bytes = %d bytes, %v", len(content), len(got), err)
			}
		})
	}
	clients.Wait()
	if got := b.Requests()["open"] - before; got != 1 {
		t.Errorf("eight downloads opened %d objects of the bucket, want 1", got)
	}
	for _, wrong := range []lfs.Object{absent, {OID: o.OID, Size: o.Size + 1}} {
		if _, _, err := c.download("app", wrong); !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Invalid) {
			t.Errorf("download of %v: %v, want NotFound or Invalid", wrong, err)
		}
	}
	many := make([]lfs.Object, 0, maxLFSLookups+2)
	for i := range maxLFSLookups + 1 {
		many = append(many, lfsObjectOf(fmt.Sprint(i)))
	}
	d := newGitNode(t, b, receivepack.Options{})
	if states, err := d.states("app", true, append(many, o)...); err != nil || states[len(many)] != lfs.Present {
		t.Errorf("state of an object in a large batch = %v, want present", err)
	}
}

// While the store is down, uploads are refused before they are read, and copies are served.
func TestLFSWithoutTheStore(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n := newGitNode(t, b, receivepack.Options{})
	create(t, n.Store, "app")
	o := n.mustUpload("app", "content")
	b.SetFaults(buckettest.Faults{Down: true})
	n.checkIdentity()
	read := &countingReader{}
	_, _, err := n.node.LFSUpload(t.Context(), repoPath("app"), node.Session{}, lfs.Upload{Object: lfsObjectOf("x")}, read)
	if !fault.Is(err, fault.Unavailable) || read.calls > 0 {
		t.Errorf("upload without the store: %v after %d reads, want Unavailable without one", err, read.calls)
	}
	if got, _, err := n.download("app", o); err != nil || got != "content" {
		t.Errorf("download of a copy = %q, %v", got, err)
	}
	states, err := n.states("app", false, o, lfsObjectOf("other"))
	if err != nil || !slices.Equal(states, []lfs.State{lfs.Present, lfs.Refused}) {
		t.Errorf("states = %v, %v, want present, refused", states, err)
	}
}

// The objects of an ordinary batch are looked up without a list of all objects.
func TestLFSLookups(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n := newGitNode(t, b, receivepack.Options{})
	create(t, n.Store, "app")
	prefix := "repos/" + n.id("app") + "/lfs/"
	var lists atomic.Int32
	b.SetHook(func(operation, key string) error {
		if operation == "list" && key == prefix {
			lists.Add(1)
		}
		return nil
	})
	batch := make([]lfs.Object, 100)
	for i := range batch {
		batch[i] = lfsObjectOf(fmt.Sprint(i))
	}
	states, err := n.states("app", true, batch...)
	if err != nil || slices.Contains(states, lfs.Present) || lists.Load() > 0 {
		t.Errorf("states = %v, %v after %d lists of all objects, want all missing and no list", states, err, lists.Load())
	}
}

// A copy that was damaged before it was stored is removed, so that a client can upload the object again.
func TestLFSDamagedCopy(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n := newGitNode(t, b, receivepack.Options{})
	create(t, n.Store, "app")
	o := lfsObjectOf("content")
	file := filepath.Join(n.options.Cache.Root, n.id("app")+".git", lfsFile(o.OID))
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, file, "damaged")
	for _, want := range []lfs.State{lfs.Refused, lfs.Missing} {
		if states, err := n.states("app", true, o); err != nil || states[0] != want {
			t.Errorf("state of a damaged copy = %v, %v, want %v", states, err, want)
		}
	}
	if used := n.Usage().Bytes; used != 0 {
		t.Errorf("the cache has %d bytes, want none", used)
	}
	n.mustUpload("app", "content")
}

// Copies have a part in the budget of the cache, and are removed for others.
func TestLFSEviction(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	writer := newGitNode(t, b, receivepack.Options{})
	create(t, writer.Store, "app")
	var list []lfs.Object
	for i := range 5 {
		list = append(list, writer.mustUpload("app", strings.Repeat(fmt.Sprint(i), 1000)))
	}
	n := newGitNode(t, b, receivepack.Options{}, func(o *Options) { o.Cache.Budget = 3500 })
	for range 2 {
		for _, o := range list {
			if _, pack, err := n.download("app", o); err != nil || pack != "miss" {
				t.Errorf("download = %q, %v, want a miss", pack, err)
			}
		}
	}
	if _, pack, err := n.download("app", list[4]); err != nil || pack != "hit" {
		t.Errorf("download of the latest = %q, %v, want a hit", pack, err)
	}
	if used := n.Usage().Bytes; used != 3000 {
		t.Errorf("the cache has %d bytes, want 3000", used)
	}
	large := strings.Repeat("x", 2000)
	if _, err := n.upload("app", large); !fault.Is(err, fault.Full) || !strings.Contains(err.Error(), "store.cache") {
		t.Errorf("upload above half of the budget: %v, want Full", err)
	}
	if states, err := n.states("app", true, lfsObjectOf(large)); err != nil || states[0] != lfs.Refused {
		t.Errorf("state of an object above half of the budget = %v, %v, want refused", states, err)
	}
}

// commitPointer commits the pointer file of an object on main.
func commitPointer(clone *gittest.Repo, content string) lfs.Object {
	o := lfsObjectOf(content)
	text := fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", o.OID, o.Size)
	clone.Git("update-ref", "refs/heads/main", clone.CommitTree("pointer",
		fmt.Sprintf("100644 blob %v\tbig.bin\n", clone.Blob(text)), clone.ID("main")).String())
	return o
}

// A push is checked against the bucket, whichever node has the object.
func TestLFSPush(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{})
	create(t, a.Store, "app")
	clone := newClone(t)
	o := commitPointer(clone, "large")
	out, err := a.push(clone, "app", "main")
	if err == nil || !strings.Contains(out, "big.bin ("+o.OID.String()) ||
		!strings.Contains(out, "(missing LFS objects)") {
		t.Errorf("push without the object: %v, %s, want a refusal", err, out)
	}
	c.mustUpload("app", "large")
	a.mustPush(clone, "app", "main")
}

// Objects that another server had get into the bucket.
func TestLFSImportOfObjects(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n := newGitNode(t, b, receivepack.Options{MissingLFS: receivepack.AllowMissingLFS})
	create(t, n.Store, "app")
	clone := newClone(t)
	o := commitPointer(clone, "large")
	n.mustPush(clone, "app", "main")
	dir := t.TempDir()
	write(t, filepath.Join(dir, o.OID.String()), "large")
	other := newGitNode(t, b, receivepack.Options{}) // without the packs
	if result, err := other.node.LFSKeeper().Import(t.Context(), repoPath("app"), dir, nil); err != nil ||
		result.Imported.Objects != 1 {
		t.Fatalf("LFSImport = %+v, %v, want an object", result, err)
	}
	if got, _, err := n.download("app", o); err != nil || got != "large" {
		t.Errorf("download = %q, %v", got, err)
	}
}

func TestLFSLocks(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{})
	create(t, a.Store, "app")
	do := func(n *gitNode, q lfs.LockRequest) (lfs.LockAnswer, error) {
		answer, _, err := n.node.LFSLocks(t.Context(), repoPath("app"), node.Session{}, q)
		return answer, err
	}
	made, err := do(a, lfs.LockRequest{Action: lfs.CreateLock, Caller: "alice", Path: "a.bin"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := do(c, lfs.LockRequest{Action: lfs.CreateLock, Caller: "bob", Path: "a.bin"}); !fault.Is(err,
		fault.Exists) {
		t.Errorf("second lock: %v, want Exists", err)
	}
	listed, err := do(c, lfs.LockRequest{Action: lfs.ListLocks, Caller: "bob"})
	if err != nil || len(listed.Locks) != 1 || listed.Locks[0].Owner != "alice" {
		t.Errorf("list = %+v, %v, want the lock of alice", listed, err)
	}
	unlock := lfs.LockRequest{Action: lfs.Unlock, Caller: "alice", ID: made.Locks[0].ID}
	if _, err := do(c, unlock); err != nil {
		t.Errorf("unlock: %v", err)
	}
	b.SetFaults(buckettest.Faults{LostAnswers: 1}) // the lock is there, although the answer is lost
	_, err = do(a, lfs.LockRequest{Action: lfs.CreateLock, Caller: "alice", Path: "b.bin"})
	b.SetFaults(buckettest.Faults{})
	if err != nil {
		t.Errorf("lock with a lost answer: %v", err)
	}
}

// The objects of a deleted repository are garbage after some time, and those of others are not.
func TestLFSGarbage(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n := newGitNode(t, b, receivepack.Options{})
	create(t, n.Store, "app")
	create(t, n.Store, "gone")
	kept := n.mustUpload("app", "kept")
	n.mustUpload("gone", "gone")
	report, err := Check(t.Context(), b, CheckOptions{Deep: true})
	if err != nil || report.Objects != 2 || report.Unnamed != 0 || len(report.Problems) > 0 {
		t.Errorf("Check = %+v, %v, want two objects and no problem", report, err)
	}
	if err := n.Delete(t.Context(), repoPath("gone"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if report, err := Check(t.Context(), b, CheckOptions{}); err != nil || report.Objects != 1 || report.Unnamed != 1 {
		t.Errorf("Check = %+v, %v, want one object, and one that no head names", report, err)
	}
	for _, c := range []struct {
		age  time.Duration
		dry  bool
		want int
	}{{time.Hour, false, 0}, {time.Nanosecond, true, 1}, {time.Nanosecond, false, 1}, {time.Nanosecond, false, 0}} {
		report, err := CollectGarbage(t.Context(), b, GCOptions{OlderThan: c.age, DryRun: c.dry})
		if err != nil || report.Objects != c.want || report.Bytes != int64(4*c.want) {
			t.Errorf("%+v: CollectGarbage = %+v, %v, want %d objects", c, report, err, c.want)
		}
	}
	if got, _, err := n.download("app", kept); err != nil || got != "kept" {
		t.Errorf("download = %q, %v", got, err)
	}
	key := "repos/" + n.id("app") + "/lfs/" + kept.OID.String()
	b.Set(key, []byte("damaged"))
	report, err = Check(t.Context(), b, CheckOptions{Deep: true})
	if err != nil || len(report.Problems) != 1 || report.Problems[0].Key != key {
		t.Errorf("Check = %+v, %v, want a problem of %s", report, err, key)
	}
}

// id returns the ID of a repository.
func (n *gitNode) id(path string) string {
	n.t.Helper()
	p, err := n.Acquire(context.Background(), repoPath(path))
	if err != nil {
		n.t.Fatal(err)
	}
	defer p.Release()
	return p.(*place).id
}

// LFS objects come out of the store as they went in, and damaged ones do not go in.
func TestLFSImportAndExport(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	root := t.TempDir()
	clone := newClone(t)
	dir := filepath.Join(root, "app.git")
	if err := os.Rename(clone.Dir, dir); err != nil {
		t.Fatal(err)
	}
	o := lfsObjectOf("large")
	file := filepath.Join(dir, lfsFile(o.OID))
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, file, "wrong")
	report, err := ImportAll(t.Context(), b, ImportOptions{Dir: root, Node: "n"})
	if err != nil || len(report.Refused) != 1 || !strings.Contains(report.Refused[0].Text, "is damaged") {
		t.Fatalf("import of a damaged object = %+v, %v, want a refusal", report, err)
	}
	write(t, file, "large")
	if report, err = ImportAll(t.Context(), b, ImportOptions{Dir: root, Node: "n"}); err != nil ||
		len(report.Imported) != 1 {
		t.Fatalf("ImportAll = %+v, %v", report, err)
	}
	n := newGitNode(t, b, receivepack.Options{})
	if got, _, err := n.download("app", o); err != nil || got != "large" {
		t.Errorf("download = %q, %v", got, err)
	}
	out := filepath.Join(t.TempDir(), "out.git")
	if err := Export(t.Context(), b, repoPath("app"), out, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(out, lfsFile(o.OID))); err != nil || string(got) != "large" {
		t.Errorf("exported object = %q, %v", got, err)
	}
}

// A node finds its copies after a start.
func TestLFSAfterAStart(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	dir := t.TempDir()
	inDir := func(o *Options) { o.Cache.Root = dir }
	s := newNode(t, b, inDir)
	create(t, s, "app")
	p, err := s.Acquire(t.Context(), repoPath("app"))
	if err != nil {
		t.Fatal(err)
	}
	o := lfsObjectOf("content")
	b.Set("repos/"+p.(*place).ID()+"/lfs/"+o.OID.String(), []byte("content"))
	f, _, err := p.LFS().Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	p.Release()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = newNode(t, b, inDir)
	if used := s.Usage().Bytes; used != o.Size {
		t.Errorf("the cache has %d bytes after a start, want %d", used, o.Size)
	}
	if err := s.Delete(t.Context(), repoPath("app"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if used := s.Usage().Bytes; used != 0 {
		t.Errorf("the cache has %d bytes of a deleted repository, want none", used)
	}
}

// Objects of the bucket are listed, whichever node has copies. store check verifies them.
func TestLFSUpkeepOfAStore(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{})
	create(t, a.Store, "app")
	create(t, a.Store, "empty")
	path := repoPath("app")
	o := a.mustUpload("app", "content")
	var objects []gc.Object
	err := c.node.LFSKeeper().ListObjects(t.Context(), path, func(o gc.Object) error {
		objects = append(objects, o)
		return nil
	})
	if err != nil || len(objects) != 1 || objects[0].OID != o.OID.String() || objects[0].Size != o.Size ||
		time.Since(objects[0].Time) > time.Minute {
		t.Errorf("LFSListObjects = %+v, %v, want the object", objects, err)
	}
	var repositories []gc.Repository
	err = c.node.LFSKeeper().List(t.Context(), func(r gc.Repository) error {
		repositories = append(repositories, r)
		return nil
	})
	if err != nil || len(repositories) != 1 || repositories[0].Repository != "app" || repositories[0].Bytes != o.Size {
		t.Errorf("LFSList = %+v, %v, want app", repositories, err)
	}
	if _, err := c.node.LFSKeeper().Verify(t.Context(), &path, nil); !fault.Is(err, fault.Denied) ||
		!strings.Contains(err.Error(), "store check --deep") {
		t.Errorf("LFSVerify = %v, want Denied", err)
	}
}
