package lookup

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

func BenchmarkBlob(b *testing.B) {
	r := gittest.Init(b)
	text := bytes.Repeat([]byte("a line of text such as there is in most files\n"), 4<<20/47)
	for i := range text {
		if i%11 == 0 {
			text[i] = 'a' + byte(rand.IntN(26))
		}
	}
	whole, streamed := store(b, r, git.Blob, text[:small]), store(b, r, git.Blob, text)
	r.GitIn(whole.String()+"\n"+streamed.String()+"\n", "pack-objects", "-q", "--window=0", r.Dir+"/objects/pack/pack")
	r.Git("prune-packed")
	l, opened := New(Options{}), openRepo(b, r)
	for name, id := range map[string]git.ObjectID{"1MiB": whole, "4MiB": streamed} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				err := l.Blob(context.Background(), opened, BlobRequest{ID: id},
					func(h BlobHeader) error { b.SetBytes(h.Size); return nil },
					func(data []byte) error { n += len(data); return nil })
				if err != nil || n < small {
					b.Fatal(n, err)
				}
			}
		})
	}
}

func BenchmarkTree1000(b *testing.B) {
	r := gittest.Init(b)
	file := store(b, r, git.Blob, []byte("x"))
	var entries []any
	for i := range 1000 {
		entries = append(entries, fmt.Sprintf("100644 file-%04d.go", i), file)
	}
	root := treeOf(b, r, entries...).String()
	r.Git("update-ref", "refs/heads/main", r.GitIn("", "commit-tree", root))
	r.Git("gc", "-q")
	l, opened := New(Options{}), openRepo(b, r)
	b.ReportAllocs()
	for b.Loop() {
		page, err := l.Tree(context.Background(), opened, TreeRequest{In: PathIn{Revision: "main"}})
		if err != nil || len(page.Entries) != 1000 {
			b.Fatal(len(page.Entries), err)
		}
	}
}

// BenchmarkLog lists 1,000 commits, with the commit-graph that gc writes.
func BenchmarkLog(b *testing.B) {
	r := gittest.Random(b, 1, gittest.Shape{Commits: 2000, Merge: 0.2, Branches: 1})
	r.Git("gc", "-q")
	r.Git("commit-graph", "write", "--reachable")
	l, opened := New(Options{}), openRepo(b, r)
	for name, path := range map[string]string{"1000": "", "path": "dir/sub/z"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				err := l.Log(context.Background(), opened, LogRequest{Limit: 1000, Path: path},
					func(batch []Commit) error { n += len(batch); return nil })
				if err != nil || path == "" && n != 1000 || n == 0 {
					b.Fatal(n, err)
				}
			}
		})
	}
}
