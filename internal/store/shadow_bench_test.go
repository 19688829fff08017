package store

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// manyRefs makes a repository whose checkpoint has n refs.
func manyRefs(t testing.TB, s *Store, b *buckettest.Memory, path string, n int) *place {
	t.Helper()
	if err := s.Create(t.Context(), repoPath(path), git.SHA1, "refs/heads/main", "", nil); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	packed.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	for i := range n {
		fmt.Fprintf(&packed, "%s refs/heads/b%07d\n", objectID(i+1), i)
	}
	acquired, err := s.Acquire(t.Context(), repoPath(path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(acquired.Release)
	p := acquired.(*place)
	_, err = p.change(t.Context(), func(head *state) (*replog.Record, error) {
		next := head.record.Next(replog.KindCheckpoint, "n", time.Now())
		next.Refs = replog.Refs{Checkpoint: "refs/1-" + replog.NewID(), Count: n, Bytes: int64(packed.Len()),
			SHA256: sha256.Sum256(packed.Bytes())}
		b.Set("repos/"+p.id+"/"+next.Refs.Checkpoint, packed.Bytes())
		return next, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// BenchmarkPushToManyRefs measures our part of a push to a repository with a million refs, without Git.
func BenchmarkPushToManyRefs(b *testing.B) {
	bucket := buckettest.NewMemory(1)
	if _, err := Init(b.Context(), bucket); err != nil {
		b.Fatal(err)
	}
	p := manyRefs(b, newNode(b, bucket), bucket, "x", 1_000_000)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	i := 0
	for b.Loop() {
		shadow, err := p.Push(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if _, err := shadow.Repo().Refs.Snapshot(b.Context()); err != nil {
			b.Fatal(err)
		}
		u := receivepack.Update{Ref: git.RefName(fmt.Sprintf("refs/heads/b%07d", i)), Old: objectID(i + 1), New: objectID(7)}
		result := shadow.Commit(b.Context(), []receivepack.Proposal{{Push: &receivepack.Push{ID: "p"},
			Updates: []receivepack.Update{u}}})[0]
		if result.Err != nil || result.Refused[0] != nil {
			b.Fatal(err, result)
		}
		shadow.Close()
		i++
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/(1<<20), "MB-kept")
}
