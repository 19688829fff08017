package pack

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// inflateObject is an object in the form of a pack: compressed at zlib's default level, as by Git.
type inflateObject struct {
	stream string
	size   int
}

// inflateObjects are typical objects by kind: commits of 250 bytes, trees of 40 entries, and this repository's own
// source files of 1-4, 4-16 and 16-64 KiB.
func inflateObjects(b *testing.B) map[string][]inflateObject {
	b.Helper()
	objects := map[string][]inflateObject{}
	add := func(kind string, data []byte) {
		var z bytes.Buffer
		w := zlib.NewWriter(&z)
		w.Write(data)
		w.Close()
		objects[kind] = append(objects[kind], inflateObject{z.String(), len(data)})
	}
	for i := range 100 {
		id := func(s string) [20]byte { return sha1.Sum(fmt.Append(nil, s, i)) }
		add("commit", fmt.Appendf(nil, "tree %x\nparent %x\nauthor A U Thor <author@example.com> 1700%06d +0000\n"+
			"committer C O Mitter <committer@example.com> 1700%06d +0000\n\npack: read objects %d\n\n%s\n",
			id("tree"), id("parent"), i*977, i*991, i, "It says what it does and why, and how it was checked."))
		var tree []byte
		for j := range 40 {
			entry := sha1.Sum(fmt.Append(nil, i, j))
			tree = append(fmt.Appendf(tree, "100644 file_%d_%x.go\x00", j, entry[:2]), entry[:]...)
		}
		add("tree", tree)
	}
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".go") {
			return err
		}
		data, err := os.ReadFile(name)
		switch n := len(data); {
		case n < 1<<10 || n >= 64<<10:
		case n < 4<<10:
			add("blob1-4KiB", data)
		case n < 16<<10:
			add("blob4-16KiB", data)
		default:
			add("blob16-64KiB", data)
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return objects
}

func BenchmarkInflate(b *testing.B) {
	objects := inflateObjects(b)
	for _, kind := range []string{"commit", "tree", "blob1-4KiB", "blob4-16KiB", "blob16-64KiB"} {
		b.Run(kind, func(b *testing.B) {
			sc := takeScratch(1)
			defer sc.release()
			dst := make([]byte, 64<<10)
			bytes, i := 0, 0
			b.ReportAllocs()
			for b.Loop() {
				o := objects[kind][i%len(objects[kind])]
				i++
				sc.seek(strings.NewReader(o.stream), 0, int64(len(o.stream)))
				if err := sc.inflate(dst[:o.size]); err != nil {
					b.Fatal(err)
				}
				bytes += o.size
			}
			b.SetBytes(int64(bytes / b.N))
		})
	}
}
