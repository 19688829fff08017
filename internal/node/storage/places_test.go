package storage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/ingest"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/watch"
)

// testPlaces are repositories of a store in memory, whose objects are always here.
type testPlaces struct {
	t    *testing.T
	root string

	mu       sync.Mutex
	named    map[string]*testRepo
	created  int
	acquired int // places that were not released
	ready    error
	down     bool // checks fail
}

// testRepo is one repository. Its refs are only in its layers.
type testRepo struct {
	*gittest.Repo
	p      *testPlaces
	id     string
	layers *refs.Layers
	config []byte // written by checks, unless nil
	checks int
	users  int
}

// testPlace is the place of a repository under a name. The refs that it knows are those of its last check.
type testPlace struct {
	*testRepo
	name  string
	known *refs.Layers
}

func newPlaces(t *testing.T, o storage.Options) (*root, *testPlaces) {
	o.Root = t.TempDir()
	o.Hidden = []string{filepath.Join(o.Root, ".packhorse")}
	if err := os.Mkdir(o.Hidden[0], 0o755); err != nil {
		t.Fatal(err)
	}
	p := &testPlaces{t: t, root: o.Root, named: make(map[string]*testRepo)}
	o.Places = p
	return newRoot(t, o), p
}

// add creates a repository whose main branch is one commit.
func (p *testPlaces) add(name, text string) *testRepo {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.created++
	r := &testRepo{p: p, id: fmt.Sprintf("id%d", p.created)}
	r.Repo = gittest.InitAt(p.t, filepath.Join(p.root, r.id+".git"))
	r.layers = &refs.Layers{Number: 1, Head: "refs/heads/main"}
	if text != "" {
		r.layers.Changes = []refs.Ref{{Name: "refs/heads/main", ID: r.Commit(text), PeelKnown: true}}
	}
	p.named[name] = r
	return r
}

// move sets main to a commit, as another node does.
func (r *testRepo) move(id git.ObjectID) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.layers = &refs.Layers{Number: r.layers.Number + 1, Head: r.layers.Head,
		Changes: []refs.Ref{{Name: "refs/heads/main", ID: id, PeelKnown: true}}}
}

func (r *testRepo) main() git.ObjectID { return r.layers.Changes[0].ID }

func (p *testPlaces) Acquire(_ context.Context, path git.RepoPath) (places.Place, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.named[strings.TrimSuffix(path.String(), ".git")] // as a store does
	if r == nil {
		return nil, fault.New(fault.NotFound, "no repository %s", path)
	}
	p.acquired++
	return &testPlace{testRepo: r, name: path.String(), known: r.layers}, nil
}

func (p *testPlaces) Fork(context.Context, git.RepoPath, git.RepoPath, places.ForkOptions) error {
	return errors.ErrUnsupported
}

func (p *testPlace) Collect(context.Context, places.RunGit, places.CollectOptions) (c places.Collected, err error) {
	return c, errors.ErrUnsupported
}

func (p *testPlace) Copies(context.Context, places.RunGit, places.PurgeOptions, []string) (x places.Search, err error) {
	return x, errors.ErrUnsupported
}

func (p *testPlace) Purge(context.Context, places.RunGit, places.PurgeOptions) (done places.Purged, err error) {
	return done, errors.ErrUnsupported
}

func (p *testPlaces) Detach(context.Context, git.RepoPath, places.RunGit) error {
	return errors.ErrUnsupported
}

func (p *testPlaces) List(_ context.Context, q places.ListQuery) (page places.Page, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.named)) {
		if strings.HasPrefix(name, q.Prefix) && name > q.After && len(page.Paths) < q.Limit {
			page.Paths = append(page.Paths, name)
		}
	}
	if len(page.Paths) == q.Limit {
		page.Next = page.Paths[q.Limit-1]
	}
	return page, nil
}

func (p *testPlaces) Create(_ context.Context, path git.RepoPath, _ git.ObjectFormat, head git.RefName,
	_ string, _ places.Settings) error {
	if _, ok := p.named[path.String()]; ok {
		return fault.New(fault.Exists, "repository %s already exists", path)
	}
	p.add(path.String(), "").layers.Head = head
	return nil
}

func (*testPlace) NotePush()                 {}
func (*testPlace) PushedAt() (at time.Time)  { return at }
func (*testPlace) Expires() (at time.Time)   { return at }
func (*testPlace) PackBytes() (int64, error) { return 0, nil }
func (*testPlace) Files() []string           { return nil }

// LFS and Locks are not used.
func (*testPlace) LFS() objects.Remote  { return nil }
func (*testPlace) Locks() lfs.LockFiles { return nil }

func (p *testPlaces) Import(ctx context.Context, path git.RepoPath, fill func(context.Context, string) error) error {
	dir := filepath.Join(p.t.TempDir(), "repo.git")
	if err := fill(ctx, dir); err != nil {
		return err
	}
	r := p.add(path.String(), "")
	id := git.MustParseObjectID(gittest.At(p.t, dir).Git("rev-parse", "main"))
	r.Git("fetch", "-q", dir, "main")
	r.move(id)
	return nil
}

func (p *testPlaces) Delete(_ context.Context, path git.RepoPath, o places.DeleteOptions) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.named[path.String()]
	if r == nil || o.Incarnation != "" && o.Incarnation != r.id {
		return fault.New(fault.NotFound, "no repository %s", path)
	}
	delete(p.named, path.String())
	return nil
}

func (p *testPlaces) Rename(_ context.Context, from, to git.RepoPath) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.named[to.String()] = p.named[from.String()]
	delete(p.named, from.String())
	return nil
}

func (p *testPlaces) Ready() error                 { return p.ready }
func (p *testPlaces) Epoch() uint64                { return 0 }
func (p *testPlaces) CheckInterval() time.Duration { return time.Minute }

func (p *testPlaces) Name(path git.RepoPath) git.RepoPath {
	name, err := git.ParseRepoPath(strings.TrimSuffix(path.String(), ".git"))
	if err != nil {
		return path
	}
	return name
}

func (r *testPlace) Path() git.RepoPath {
	path, _ := git.ParseRepoPath(r.name)
	return path
}
func (r *testPlace) Key() string                     { return r.id + r.name }
func (r *testPlace) IsFresh(*repo.Repo) bool         { return r.Known() != nil }
func (r *testPlace) MirrorMarks() places.MirrorMarks { return places.MirrorMarks{} }

func (r *testPlace) Open(ctx context.Context, o repo.Options) (*repo.Repo, error) {
	o.Place = r
	opened, err := repo.Open(r.Repo.Dir, o)
	if err != nil && r.Check(ctx) == nil {
		opened, err = repo.Open(r.Repo.Dir, o)
	}
	return opened, err
}

func (r *testPlace) Check(ctx context.Context) error {
	_, err := r.Layers(ctx)
	return err
}

func (r *testPlace) Version(_, generation uint64) git.Version {
	return git.Version{Incarnation: r.id, Epoch: 1, Generation: generation}
}

func (r *testPlace) Size(ctx context.Context) (int64, error) {
	c, err := r.Counts(ctx)
	return c.PackBytes, err
}

func (r *testPlace) Layers(context.Context) (*refs.Layers, error) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.checks++
	if r.p.down {
		return nil, fault.New(fault.Unavailable, "the store is down")
	}
	if r.p.named[r.name] != r.testRepo {
		r.known = nil
		return nil, fault.New(fault.NotFound, "no repository %s", r.name)
	}
	if r.config != nil {
		if err := os.WriteFile(r.Repo.Dir+"/config", r.config, 0o644); err != nil {
			return nil, err
		}
	}
	r.known = r.layers
	return r.layers, nil
}

func (r *testPlace) Known() *refs.Layers {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.known
}

func (r *testPlace) ID() string { return r.id }

func (r *testPlace) Use(context.Context, func(done, total int64)) (func(), error) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.users++
	return func() {
		r.p.mu.Lock()
		defer r.p.mu.Unlock()
		r.users--
	}, nil
}

// Push checks for changes, and then refuses the push.
func (r *testPlace) Push(ctx context.Context) (receivepack.Shadow, error) {
	if _, err := r.Layers(ctx); err != nil {
		return nil, err
	}
	return nil, fault.New(fault.Unavailable, "no pushes here")
}

func (r *testPlace) Counts(context.Context) (pack.Counts, error) {
	return pack.Counts{Packed: 7, Packs: 2, PackBytes: 1000}, nil
}

func (r *testPlace) Maintain(ctx context.Context, git places.RunGit, _ places.MaintainOptions) error {
	dir := filepath.Join(r.p.root, ".packhorse/copy.git")
	if err := os.CopyFS(dir, os.DirFS(r.Repo.Dir)); err != nil {
		return err
	}
	copied, err := repo.Open(dir, repo.Options{})
	if err != nil {
		return err
	}
	defer copied.Close()
	return git(ctx, copied, places.GitCommand{Args: []string{"repack", "-d", "-l", "-n", "-q", "--geometric=2"}})
}

func (r *testPlace) SetHead(_ context.Context, branch git.RefName, _ func() (bool, error)) (bool, error) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	layers := *r.layers
	layers.Number, layers.Head = layers.Number+1, branch
	r.layers, r.known = &layers, &layers
	return true, nil
}

func (r *testPlace) Configure(context.Context, func(places.Settings) error) error { return nil }

func (r *testPlace) Release() {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.p.acquired--
}

func TestPlacesServeTheLatestRefs(t *testing.T) {
	t.Parallel()
	r, p := newPlaces(t, storage.Options{})
	app := p.add("team/app", "one")
	for _, path := range []string{"team/app", "team/app.git"} {
		r.serves(path, app.main())
	}
	checks := app.checks
	r.key("team/app", app.main())
	if app.checks != checks {
		t.Errorf("a fetch of a known tip made %d checks, want none", app.checks-checks)
	}
	next := app.Commit("two", app.main())
	app.move(next)
	r.key("team/app", next) // advertised by another node
	r.serves("team/app", next)
	found, err := r.Resolve(t.Context(), r.path("team/app.git"), "main")
	want := git.Version{Incarnation: "id1", Epoch: 1, Generation: 2}
	if err != nil || found.ID != next || found.Version != want {
		t.Errorf("Resolve(main) = %v of version %v, %v, want %v of %v", found.ID, found.Version, err, next, want)
	}
	if commit, err := r.Commit(t.Context(), r.path("team/app"), "main"); err != nil || commit.ID != next {
		t.Errorf("Commit(main) = %v, %v, want %v", commit.ID, err, next)
	}
	r.refuses("team", fault.NotFound, "no repository")
	r.refuses("team/app.git.git", fault.NotFound, "no repository")
	if app.users != 0 {
		t.Errorf("%d users hold the objects, want none", app.users)
	}
	r.Close()
	if p.acquired != 0 {
		t.Errorf("%d places were not released", p.acquired)
	}
}

// TestPlacesFindReplacements: a repository that another node has put under a known name is served at once.
func TestPlacesFindReplacements(t *testing.T) {
	t.Parallel()
	r, p := newPlaces(t, storage.Options{})
	first := p.add("app", "one")
	r.serves("app", first.main())
	second := p.add("app", "two")
	r.serves("app", second.main())
	third := p.add("app", "three")
	tree, err := r.Tree(t.Context(), r.path("app"), lookup.TreeRequest{In: lookup.PathIn{Revision: "main"}})
	if err != nil {
		t.Errorf("Tree(main) = %v, %v, want the tree of %v", tree, err, third.main())
	}
	if err := p.Delete(t.Context(), r.path("app"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.refuses("app", fault.NotFound, "no repository")
}

// TestPlacesAreRepaired: a node that has a config with which it cannot serve a repository finds the next one.
func TestPlacesAreRepaired(t *testing.T) {
	t.Parallel()
	r, p := newPlaces(t, storage.Options{})
	app := p.add("app", "one")
	good, err := os.ReadFile(app.Dir + "/config")
	if err != nil {
		t.Fatal(err)
	}
	app.Git("config", "include.path", "other")
	r.refuses("app", fault.Unavailable, "includes another file")
	app.config = good
	r.serves("app", app.main())
	r.Close()
	if p.acquired != 0 {
		t.Errorf("%d places were not released", p.acquired)
	}
}

// TestPlacesAreFoundAgain: a request to a repository that another node has replaced is made again, also if no
// advertisement was made here before it.
func TestPlacesAreFoundAgain(t *testing.T) {
	t.Parallel()
	r, p := newPlaces(t, storage.Options{Pushes: newPushServer(t)})
	r.serves("app", p.add("app", "one").main())
	r.key("app", p.add("app", "two").main())

	third := p.add("app", "three").main()
	request := pktline.AppendFlush(pktline.AppendDelim(pktline.AppendLine(nil, "command=ls-refs")))
	var out answer
	_, err := r.UploadPack(t.Context(), r.path("app"), version2, bytes.NewReader(request), &out)
	if err != nil || !strings.Contains(out.String(), third.String()) {
		t.Errorf("ls-refs = %q, %v, want %v", out.String(), err, third)
	}

	p.add("app", "four")
	if err := r.push("app", &answer{}); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "no pushes") {
		t.Errorf("push = %v, want the answer of the new repository", err)
	}
	if err := p.Delete(t.Context(), r.path("app"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.push("app", &answer{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("push to a deleted repository = %v, want not found", err)
	}
	r.Close()
	if p.acquired != 0 {
		t.Errorf("%d places were not released", p.acquired)
	}
}

// While the store cannot be reached, known tips can be fetched, but refs cannot be listed.
func TestPlacesWithoutStore(t *testing.T) {
	t.Parallel()
	r, p := newPlaces(t, storage.Options{})
	app := p.add("app", "one")
	p.add("other", "two")
	r.serves("app", app.main())
	p.down = true
	for _, test := range []struct {
		path    string
		version protocol.Version
		want    bool
	}{{"app", protocol.V2, true}, {"app", protocol.V0, false}, {"none", protocol.V2, false}} {
		_, err := r.Advertise(t.Context(), r.path(test.path), node.Session{Version: test.version}, &answer{})
		if got := err == nil; got != test.want {
			t.Errorf("Advertise(%s, version %d) = %v, want success: %t", test.path, test.version, err, test.want)
		}
	}
	r.key("app", app.main())
	r.refuses("app", fault.Unavailable, "down")
}

// Files of evicted packs are closed.
func TestEvictedPlaces(t *testing.T) {
	t.Parallel()
	r, p := newPlaces(t, storage.Options{})
	app := p.add("app", "one")
	app.Git("repack", "-a", "-d", "-q")
	r.serves("app", app.main())
	if _, err := r.Commit(t.Context(), r.path("app"), "main"); err != nil {
		t.Fatal(err)
	}
	isOpen := func() bool { return strings.Contains(openFiles(t), app.Dir+"/objects/pack/") }
	if !isOpen() {
		t.Skip("open files cannot be listed here")
	}
	packs, _ := filepath.Glob(app.Dir + "/objects/pack/*")
	for _, path := range packs {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	r.Evicted("id1")
	if isOpen() {
		t.Error("a pack is open after its eviction, want it closed")
	}
}

// openFiles returns the paths of the open and mapped files of this process.
func openFiles(t *testing.T) string {
	t.Helper()
	maps, _ := os.ReadFile("/proc/self/maps")
	files := []string{string(maps)}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		files = append(files, to)
	}
	return strings.Join(files, "\n")
}

func TestPlacesAreManaged(t *testing.T) {
	t.Parallel()
	r, p := newPlaces(t, storage.Options{Runner: newRunner(t)})
	ctx := t.Context()
	d, err := r.Create(ctx, r.path("team/app.git"), storage.CreateOptions{Branch: "trunk"})
	if err != nil || d.Path != "team/app" || d.Head.Target != "refs/heads/trunk" || d.Size != 1000 ||
		d.Objects.Packs != 2 {
		t.Errorf("Create() = %+v, %v, want team/app with HEAD at trunk and the counts of its place", d, err)
	}
	if _, err := r.Create(ctx, r.path("team/app"), storage.CreateOptions{}); !fault.Is(err, fault.Exists) {
		t.Errorf("Create() of an existing repository = %v, want the kind %v", err, fault.Exists)
	}
	from := gittest.Init(t)
	id := from.Commit("imported")
	from.Git("update-ref", "refs/heads/main", id.String())
	if _, err := r.Import(ctx, r.path("copy"), places.ImportOptions{Source: from.Dir}); err != nil {
		t.Fatal(err)
	}
	r.serves("copy", id)
	if exists, err := r.SetHead(ctx, r.path("copy"), "refs/heads/none", ""); err != nil || exists {
		t.Errorf("SetHead(none) = %v, %v, want false", exists, err)
	}
	if err := r.Rename(ctx, r.path("copy.git"), r.path("team/copy.git")); err != nil {
		t.Fatal(err)
	}
	r.serves("team/copy", id)
	r.refuses("copy", fault.NotFound, "no repository")
	page, err := r.List(ctx, places.ListQuery{Prefix: "team/", Limit: 1})
	if err != nil || !slices.Equal(page.Paths, []string{"team/app"}) || page.Next != "team/app" {
		t.Errorf("List() = %+v, %v, want team/app and another page", page, err)
	}
	if m, err := r.Maintain(ctx, r.path("team/copy")); err != nil || m.After.Packs != 2 {
		t.Errorf("Maintain() = %+v, %v, want the counts of the place", m, err)
	}
	if packs, _ := filepath.Glob(filepath.Join(p.root, ".packhorse/copy.git/objects/pack/*.pack")); len(packs) != 1 {
		t.Errorf("maintenance left the packs %q in the copy, want one", packs)
	}
	if err := r.Delete(ctx, r.path("team/copy"), places.DeleteOptions{Incarnation: "other"}); !fault.Is(err,
		fault.NotFound) {
		t.Errorf("Delete() of another incarnation = %v, want the kind %v", err, fault.NotFound)
	}
	if err := r.Delete(ctx, r.path("team/copy"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.refuses("team/copy", fault.NotFound, "no repository")
	if _, err := r.Ingest(ctx, r.path("team/app"), ingest.State{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("Ingest() = %v, want the kind %v", err, fault.Invalid)
	}
	if p.ready = fault.New(fault.Unavailable, "the store is away"); r.Ready() != p.ready {
		t.Errorf("Ready() = %v, want %v", r.Ready(), p.ready)
	}
}

// TestWatchOfPlaces: changes by other nodes are found by checks, and at once if this node knows them already.
func TestWatchOfPlaces(t *testing.T) {
	t.Parallel()
	for name, interval := range map[string]storage.Options{"checked": {CheckInterval: often}, "known": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, p := newPlaces(t, interval)
			app := p.add("app", "one")
			a := app.main()
			w := r.watch(watch.From{Path: r.path("app")})
			if e := w.next(); !e.Reset || e.Version != (git.Version{Incarnation: "id1", Epoch: 1, Generation: 1}) {
				t.Errorf("the first event is %+v, want a reset of version 1", e)
			}
			b := app.Commit("two", a)
			app.move(b)
			if name == "known" {
				if _, err := r.Resolve(t.Context(), r.path("app"), "main"); err != nil {
					t.Fatal(err)
				}
				checks := app.checks
				r.CheckWatches(r.path("app"))
				defer func() {
					if app.checks != checks {
						t.Errorf("the watch made %d checks of a known change, want none", app.checks-checks)
					}
				}()
			}
			w.want(map[git.ObjectID]string{a: "a", b: "b"}, "HEAD a>b refs/heads/main", "refs/heads/main a>b")
			w.end()
		})
	}
}
