package hydrate

import (
	"bytes"
	"testing"

	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// BenchmarkHydrate downloads a pack of 90 MB from a real server on this machine.
func BenchmarkHydrate(b *testing.B) {
	fake := newFakeBucket()
	rec := newRecord()
	fake.addPack(rec, "a", "1", 90<<20)
	real := buckettest.Versitygw(b).Bucket("bench")
	p := &rec.Packs[0]
	for _, f := range p.Files() {
		key := "repos/a/" + p.Key + f.Ext
		if err := real.Put(b.Context(), key, bytes.NewReader(fake.objects[key]), f.Bytes, f.SHA256); err != nil {
			b.Fatal(err)
		}
	}
	fake.objects = nil
	c := open(b, Options{Bucket: real})
	b.SetBytes(packBytes(p))
	for b.Loop() {
		r := c.Repository("a")
		use(b, r, rec)()
		if err := r.Remove(); err != nil {
			b.Fatal(err)
		}
	}
}
