package storage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
)

// specs is a packsource.Source that keeps what it is asked for and makes nothing.
type specs struct {
	mu   sync.Mutex
	last *packsource.Spec
}

var errNoPack = errors.New("no packs here")

func (s *specs) Open(_ context.Context, spec *packsource.Spec) (packsource.Pack, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = spec
	return nil, errNoPack
}

// answer is a node.ResponseWriter that keeps the response.
type answer struct{ bytes.Buffer }

func (*answer) SetLength(int64)      {}
func (*answer) StartBulk(bool) error { return nil }

func (*answer) ReserveMemory(int64) error { return nil }
func (*answer) Flush() error              { return nil }

var version2 = node.Session{Version: protocol.V2, Stateless: true}

type root struct {
	runner *process.Runner // of newWritten
	*storage.Node
	t     testing.TB
	dir   string
	specs *specs
}

func newRoot(t testing.TB, o storage.Options) *root {
	t.Helper()
	if o.Root == "" {
		o.Root = t.TempDir()
	}
	r := &root{t: t, dir: o.Root, specs: &specs{}}
	var err error
	if r.Node, err = storage.New(uploadpack.New(r.specs, uploadpack.Options{Agent: "test"}), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// repo makes a repository below the root whose main branch is one commit with the given text.
func (r *root) repo(path, text string, args ...string) *gittest.Repo {
	r.t.Helper()
	repo := gittest.InitAt(r.t, filepath.Join(r.dir, path), args...)
	repo.Git("update-ref", "refs/heads/main", repo.Commit(text).String())
	return repo
}

// refs lists a repository's refs over the protocol.
func (r *root) refs(path string) (string, error) {
	repo, err := git.ParseRepoPath(path)
	if err != nil {
		return "", err
	}
	format := "sha1"
	var advertised answer
	if _, err := r.Advertise(context.Background(), repo, version2, &advertised); err != nil {
		return "", err
	} else if bytes.Contains(advertised.Bytes(), []byte("object-format=sha256")) {
		format = "sha256"
	}
	request := pktline.AppendLine(nil, "command=ls-refs")
	request = pktline.AppendFlush(pktline.AppendDelim(pktline.AppendLine(request, "object-format="+format)))
	var out answer
	_, err = r.UploadPack(context.Background(), repo, version2, bytes.NewReader(request), &out)
	return out.String(), err
}

// key requests a pack of main and returns its key.
func (r *root) key(path string, want git.ObjectID) packsource.Key {
	r.t.Helper()
	repo, err := git.ParseRepoPath(path)
	if err != nil {
		r.t.Fatal(err)
	}
	request := pktline.AppendDelim(pktline.AppendLine(nil, "command=fetch"))
	request = pktline.AppendFlush(pktline.AppendLine(pktline.AppendLine(request, "want "+want.String()), "done"))
	if _, err := r.UploadPack(context.Background(), repo, version2, bytes.NewReader(request), &answer{}); !errors.Is(err,
		errNoPack) {
		r.t.Fatalf("fetch from %s: %v", path, err)
	}
	return r.specs.last.Key()
}

func (r *root) serves(path string, id git.ObjectID) {
	r.t.Helper()
	if refs, err := r.refs(path); err != nil || !strings.Contains(refs, id.String()+" refs/heads/main") {
		r.t.Errorf("%s: %q, %v; want main at %s", path, refs, err, id)
	}
}

// refuses expects an error of a kind whose text for the client says something, and nothing of where things lie.
func (r *root) refuses(path string, kind fault.Kind, says string) {
	r.t.Helper()
	_, err := r.refs(path)
	if fault.KindOf(err) != kind || !strings.Contains(fault.Message(err), says) {
		r.t.Errorf("%s: kind %v, %v; want %v with %q", path, fault.KindOf(err), err, kind, says)
	}
	if err != nil && strings.Contains(fault.Message(err), r.dir) {
		r.t.Errorf("%s: the client is told a path of the server: %s", path, fault.Message(err))
	}
}

func (r *root) do(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func TestWhereRepositoriesAreFound(t *testing.T) {
	t.Parallel()
	state := "state/dir" // relative, and not there yet
	r := newRoot(t, storage.Options{})
	bare := r.repo("team/app.git", "bare").ID("main")
	plain := r.repo("team/plain", "plain").ID("main")
	work := r.repo("deep/er/and/deeper/work/.git", "work").ID("main")
	sha256 := r.repo("new.git", "new", "--object-format=sha256").ID("main")
	for path, id := range map[string]git.ObjectID{
		"team/app": bare, "team/app.git": bare, "/team/app.git/": bare, "team/plain": plain, "team/plain.git": plain,
		"deep/er/and/deeper/work": work, "deep/er/and/deeper/work/.git": work, "deep/er/and/deeper/work.git": work,
		"new": sha256,
	} {
		r.serves(path, id)
		r.serves(path, id) // from an open handle
	}
	r.repo(state+"/kept.git", "hidden")
	r.repo("team/app.git/modules/inner.git", "inner")
	for _, path := range []string{
		"", "team", "nothing", "team/app.git/objects", "team/app.git/modules/inner", "team/ap", "team/app.", "team/app ",
		"..", "team/../team/app", "team//app", "./team/app", "-/app", "a\x00b", "team\\app", "\xff\xfe",
		strings.Repeat("x", 300), strings.Repeat("a/", 500) + "b",
		strings.Repeat("x", 2000), "team/app.git/HEAD",
	} {
		if _, err := r.refs(path); err == nil {
			t.Errorf("%q was served", path)
		} else if _, bad := git.ParseRepoPath(path); bad == nil && !fault.Is(err, fault.NotFound) {
			t.Errorf("%q: %v, want not found", path, err)
		}
	}
}

func TestHiddenDirectoryThatComesLater(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	r := newRoot(t, storage.Options{Root: ".", Hidden: []string{"state/here", filepath.Join(dir, "other")}})
	for _, path := range []string{"state/here/a.git", "other/b.git"} {
		r.repo(path, "hidden")
		r.refuses(path, fault.NotFound, "no such repository")
	}
	r.serves("state/there", r.repo("state/there.git", "not hidden").ID("main"))
}

func TestRepositoriesComeAndGo(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	path := filepath.Join(r.dir, "app.git")
	r.refuses("app", fault.NotFound, "no repository app here")
	first := r.repo("app.git", "first")
	r.serves("app", first.ID("main"))
	key := r.key("app", first.ID("main"))
	second := first.Commit("second")
	first.Git("update-ref", "refs/heads/main", second.String())
	r.serves("app", second)

	r.do(os.RemoveAll(path))
	r.refuses("app", fault.NotFound, "")
	for range 5 { // file systems give a new directory the inode of a deleted one
		again := r.repo("app.git", "first")
		r.serves("app", again.ID("main"))
		if now := r.key("app", again.ID("main")); now == key {
			t.Error("a repository made anew shares packs with the one before")
		} else {
			key = now
		}
		r.do(os.RemoveAll(path))
	}

	r.repo("app.git", "behind") // found as DIR.git until DIR is there
	front := r.repo("app", "front")
	r.serves("app", front.ID("main"))
	r.do(os.RemoveAll(front.Dir))
	work := r.repo("app/.git", "work tree")
	r.serves("app", work.ID("main"))
	r.do(os.RemoveAll(work.Dir))
	r.serves("app", gittest.At(t, path).ID("main"))

	other := r.repo("app2.git", "other objects")
	r.do(os.RemoveAll(path))
	r.do(os.Rename(other.Dir, path))
	r.serves("app.git", gittest.At(t, path).ID("main"))
}

// A whole file system may be served.
func TestRootOfAll(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{Root: "/"})
	made := gittest.Init(t)
	id := made.Commit("x")
	made.Git("update-ref", "refs/heads/main", id.String())
	r.serves(made.Dir, id)
}

func TestSymbolicLinks(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	one, two := r.repo("one.git", "one"), r.repo("sub/two.git", "two")
	outside := gittest.Init(t)
	outside.Git("update-ref", "refs/heads/main", outside.Commit("outside").String())
	link := filepath.Join(r.dir, "link.git")
	point := func(target string) {
		t.Helper()
		r.do(errors.Join(os.RemoveAll(link), os.Symlink(target, link)))
	}
	point("one.git")
	r.serves("link", one.ID("main"))
	point("sub/two.git")
	r.serves("link", two.ID("main"))
	point(outside.Dir)
	r.refuses("link", fault.NotFound, "")
	point("../../../../../../../.." + outside.Dir)
	r.refuses("link", fault.NotFound, "")
	point("link.git")
	r.refuses("link", fault.NotFound, "")

	r.do(os.Symlink(filepath.Dir(outside.Dir), filepath.Join(r.dir, "up")))
	r.refuses("up/"+filepath.Base(outside.Dir), fault.NotFound, "")

	r.serves("one", one.ID("main"))
	objects := filepath.Join(one.Dir, "objects")
	r.do(errors.Join(os.Rename(objects, filepath.Join(r.dir, "moved")), os.Symlink("../moved", objects)))
	r.serves("one", one.ID("main"))
	r.do(errors.Join(os.Remove(objects), os.Symlink(filepath.Join(outside.Dir, "objects"), objects)))
	r.refuses("one", fault.Denied, "outside the served root")

	for _, part := range []string{"refs", "packed-refs"} {
		linked := r.repo("linked-"+part+".git", part)
		linked.Git("pack-refs", "--all")
		outside.Git("pack-refs", "--all")
		r.serves("linked-"+part, linked.ID("main"))
		path := filepath.Join(linked.Dir, part)
		moved := filepath.Join(r.dir, "moved-"+part)
		r.do(errors.Join(os.Rename(path, moved), os.Symlink(moved, path)))
		r.serves("linked-"+part, linked.ID("main"))
		r.do(errors.Join(os.Remove(path), os.Symlink(filepath.Join(outside.Dir, part), path)))
		r.refuses("linked-"+part, fault.Denied, "outside the served root")
	}
}

func TestUnservableRequestsNameTheReason(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	outside := gittest.Init(t)
	for name, test := range map[string]struct {
		config, alternates string
		kind               fault.Kind
		says               string
	}{
		"version 2": {"[core]\nrepositoryformatversion = 2\n", "", fault.Unavailable, "version \"2\""},
		"unknown extension": {"[core]\nrepositoryformatversion = 1\n[extensions]\nmagic = 1\n", "", fault.Unavailable,
			"\"magic\""},
		"unknown hash": {"[core]\nrepositoryformatversion = 1\n[extensions]\nobjectformat = md5\n", "",
			fault.Unavailable, "\"md5\""},
		"extension too new": {"[core]\nrepositoryformatversion = 0\n[extensions]\nobjectformat = sha256\n", "",
			fault.Unavailable, "needs repository format version 1"},
		"reftable": {"[core]\nrepositoryformatversion = 1\n[extensions]\nrefstorage = reftable\n", "",
			fault.Unavailable, "reftables"},
		"bad config":           {"[core\n", "", fault.Corrupt, "config cannot be read"},
		"long config":          {"# " + strings.Repeat("x", 2<<20), "", fault.Corrupt, "longer than"},
		"alternates outside":   {"", outside.Dir + "/objects\n", fault.Denied, "outside"},
		"no version":           {"[extensions]\nmagic = 1\nobjectformat = sha256\n", "", 0, ""},
		"old version, ignored": {"[core]\nrepositoryformatversion = 0\n[extensions]\nmagic = 1\n", "", 0, ""},
	} {
		path := strings.ReplaceAll(name, " ", "-")
		repo := r.repo(path+".git", name)
		id := repo.ID("main")
		r.serves(path, id) // what changes is seen by an open handle too
		if test.config != "" {
			r.do(os.WriteFile(filepath.Join(repo.Dir, "config"), []byte(test.config), 0o600))
		}
		if test.alternates != "" {
			r.do(os.WriteFile(filepath.Join(repo.Dir, "objects/info/alternates"), []byte(test.alternates), 0o600))
			r.do(r.Close())
		}
		if test.says == "" {
			r.serves(path, id)
		} else {
			r.refuses(path, test.kind, test.says)
		}
	}
}

func TestUnreadableRepositoryIsNotMissing(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("the super-user may read everything")
	}
	r := newRoot(t, storage.Options{})
	repo := r.repo("app.git", "app")
	r.do(os.Chmod(repo.Dir, 0))
	t.Cleanup(func() { _ = os.Chmod(repo.Dir, 0o700) })
	r.refuses("app", fault.Unavailable, "cannot be read")
}

func TestHandlesAreEvictedUnderUse(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{MaxOpen: 2})
	const repos = 20
	var ids [repos]git.ObjectID
	for i := range repos {
		ids[i] = r.repo(fmt.Sprintf("r%d.git", i), fmt.Sprint(i)).ID("main")
	}
	const seed = 5
	var wg sync.WaitGroup
	for worker := range 8 {
		rnd := rand.New(rand.NewPCG(seed, uint64(worker)))
		wg.Go(func() {
			for range 100 {
				i := rnd.IntN(repos)
				refs, err := r.refs(fmt.Sprintf("r%d", i))
				if err != nil || !strings.Contains(refs, ids[i].String()) {
					t.Errorf("repository %d: %q, %v", i, refs, err)
					return
				}
			}
		})
	}
	wg.Wait()
	open := 0
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("cannot count open files here")
	}
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(target, r.dir) {
			open++
		}
	}
	if open > 20 {
		t.Errorf("%d files are open for 2 repositories", open)
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	r.do(r.Ready())
	r.do(os.RemoveAll(r.dir))
	if err := r.Ready(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without its root: %v", err)
	}
	if _, err := storage.New(nil, storage.Options{Root: r.dir}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a node without a root: %v", err)
	}
	other := r.dir + ".other" // made while the first one is there, so that it is not the same
	first := newRoot(t, storage.Options{})
	r.do(os.MkdirAll(other, 0o755))
	r.do(os.RemoveAll(first.dir))
	r.do(os.Rename(other, first.dir))
	if err := first.Ready(); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "mounted") {
		t.Errorf("with the empty directory that its file system was mounted on: %v", err)
	}
	r.do(os.Mkdir(filepath.Join(first.dir, "app.git"), 0o755))
	r.do(first.Ready())
}

var _ io.ReaderFrom = (*answer)(nil)
