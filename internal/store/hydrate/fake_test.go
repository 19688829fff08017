package hydrate

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// fakeBucket is a bucket of which only Open is used. Its hook may change the answer to a request.
type fakeBucket struct {
	bucket.Bucket
	mu      sync.Mutex
	objects map[string][]byte
	opened  map[string]int
	hook    func(ctx context.Context, key string, content []byte) ([]byte, error) // guarded by mu
}

func newFakeBucket() *fakeBucket {
	return &fakeBucket{objects: map[string][]byte{}, opened: map[string]int{}}
}

func (b *fakeBucket) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser, bucket.Info, error) {
	b.mu.Lock()
	content, ok := b.objects[key]
	b.opened[key]++
	hook := b.hook
	b.mu.Unlock()
	if !ok {
		return nil, bucket.Info{}, fault.Wrap(fault.NotFound, "no object", fmt.Errorf("open %s: %w", key, bucket.ErrNotFound))
	}
	info := bucket.Info{Key: key, Size: int64(len(content))}
	part := content[min(offset, info.Size):min(offset+length, info.Size)]
	if hook != nil {
		var err error
		if part, err = hook(ctx, key, part); err != nil {
			return nil, bucket.Info{}, err
		}
	}
	return io.NopCloser(bytes.NewReader(part)), info, nil
}

func (b *fakeBucket) setHook(hook func(ctx context.Context, key string, content []byte) ([]byte, error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hook = hook
}

// requests returns the number of requests so far.
func (b *fakeBucket) requests() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, times := range b.opened {
		n += times
	}
	return n
}

// times returns the number of requests for a key.
func (b *fakeBucket) times(key string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened[key]
}

// put stores an object.
func (b *fakeBucket) put(key string, content []byte) replog.Sum {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.objects[key] = content
	return sha256.Sum256(content)
}

// addPack adds a pack with random bytes to the record of a repository.
func (b *fakeBucket) addPack(rec *replog.Record, id, name string, size int) {
	p := replog.Pack{Key: replog.PackKey("pack-"+name, "txn"), Bytes: int64(size), IdxBytes: int64(size / 10),
		Objects: 1, Since: rec.Number}
	random := rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%-32s", id+name))))
	content, idx := make([]byte, size), make([]byte, size/10)
	random.Read(content)
	random.Read(idx)
	p.SHA256 = b.put("repos/"+id+"/"+p.Key+".pack", content)
	p.IdxSHA256 = b.put("repos/"+id+"/"+p.Key+".idx", idx)
	rec.Packs = append(rec.Packs, p)
}

// newRecord returns a first record without packs and refs.
func newRecord() *replog.Record {
	return &replog.Record{Number: 1, Txn: replog.NewID(), Kind: replog.KindCreate, At: time.Now(), Node: "test",
		Head: "refs/heads/main", ObjectFormat: git.SHA1, Names: []git.RepoPath{repoPath("team/app")}}
}

func repoPath(s string) git.RepoPath {
	p, err := git.ParseRepoPath(s)
	if err != nil {
		panic(err)
	}
	return p
}

// open opens a cache below a root that closes with the test.
func open(t testing.TB, o Options) *Cache {
	t.Helper()
	if o.Root == "" {
		o.Root = t.TempDir()
	}
	o.MinFree = cmp.Or(o.MinFree, 1)
	c, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// use uses a record, and fails the test if that does not work.
func use(t testing.TB, r *Repository, rec *replog.Record) (done func()) {
	t.Helper()
	done, err := r.Use(t.Context(), rec, nil)
	if err != nil {
		t.Fatalf("Use of record %d: %v", rec.Number, err)
	}
	return done
}

// checkFiles compares the local packs of a record with the bucket.
func checkFiles(t testing.TB, b *fakeBucket, r *Repository, rec *replog.Record) {
	t.Helper()
	for i := range rec.Packs {
		p := &rec.Packs[i]
		for _, f := range p.Files() {
			got, err := os.ReadFile(r.path(p, f))
			b.mu.Lock()
			want := b.objects[r.key(p.Key)+f.Ext]
			b.mu.Unlock()
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s%s has %d bytes (%v), want the %d bytes of the bucket", p.Key, f.Ext, len(got), err, len(want))
			}
		}
	}
}

// checkGone checks that nothing of a pack is on disk.
func checkGone(t testing.TB, r *Repository, p *replog.Pack) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(r.packDir(), packName(p)+"*")); len(left) > 0 {
		t.Errorf("files %v are left, want none", left)
	}
}

// checkEmptyState checks that no download is left. Files are removed in the background.
func checkEmptyState(t testing.TB, c *Cache) {
	t.Helper()
	var entries []os.DirEntry
	var err error
	if !gittest.Eventually(func() bool {
		entries, err = os.ReadDir(c.state)
		return err == nil && len(entries) == 1
	}) {
		t.Errorf("the state directory has %v (%v), want only the mark", entries, err)
	}
}
