package wire_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
)

const (
	id     = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
	object = `{"oid":"` + id + `","size":7}`
)

func TestReadBatch(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"operation":"upload","transfers":["basic"],"ref":{"name":"refs/heads/main"},"objects":[` + object +
			`],"x":{"y":[1]}}`,
		` { "x" : null , "objects":[{"size":7,"extra":[{}],"oid":"` + id + `"}],"ref":{"name":"refs/heads/main"},` +
			`"transfers":["basic"],"operation":"upload"} ` + "\n",
	} {
		b, objects, err := wire.ReadBatch(iotest.OneByteReader(strings.NewReader(text)))
		if err != nil || b.Operation != wire.Upload || len(b.Transfers) != 1 || b.Ref == nil ||
			b.Ref.Name != "refs/heads/main" ||
			len(objects) != 1 || objects[0].OID.String() != id || objects[0].Size != 7 {
			t.Errorf("ReadBatch(%s) = %+v, %v, %v, want one object", text, b, objects, err)
		}
	}
	if _, objects, err := wire.ReadBatch(strings.NewReader(`{"objects":null}`)); err != nil || len(objects) != 0 {
		t.Errorf("ReadBatch without objects = %v, %v, want none", objects, err)
	}
}

func TestReadBatchLimits(t *testing.T) {
	t.Parallel()
	batch := func(n int) string { return `{"objects":[` + strings.Repeat(object+",", n-1) + object + `]}` }
	if _, objects, err := wire.ReadBatch(strings.NewReader(batch(lfs.MaxBatch))); err != nil ||
		len(objects) != lfs.MaxBatch {
		t.Errorf("ReadBatch of %d objects = %d, %v, want all", lfs.MaxBatch, len(objects), err)
	}
	for name, text := range map[string]string{
		"objects": batch(lfs.MaxBatch + 1),
		"bytes":   `{"x":"` + strings.Repeat("a", wire.MaxBatch) + `"}`,
		"spaces":  `{` + strings.Repeat(" ", wire.MaxBatch+1) + `}`,
	} {
		if _, _, err := wire.ReadBatch(strings.NewReader(text)); !errors.Is(err, wire.ErrTooLarge) {
			t.Errorf("ReadBatch with too many %s error = %v, want ErrTooLarge", name, err)
		}
	}
	deep := `{"x":` + strings.Repeat("[", wire.MaxBatch+1) // which is not read to the limit
	if _, _, err := wire.ReadBatch(strings.NewReader(deep)); !fault.Is(err, fault.Invalid) ||
		errors.Is(err, wire.ErrTooLarge) {
		t.Errorf("ReadBatch with deep nesting error = %v, want Invalid", err)
	}
	failed := fault.New(fault.Exhausted, "no memory")
	if _, _, err := wire.ReadBatch(iotest.ErrReader(failed)); !errors.Is(err, failed) {
		t.Errorf("ReadBatch of a failing reader error = %v, want its error", err)
	}
}

func FuzzReadBatch(f *testing.F) {
	f.Add(`{"operation":"download","objects":[` + object + `]}`)
	f.Add(`{"objects":[` + object + `,{}]}`)
	f.Add(`{"objects":{"a":1}}{}`)
	f.Fuzz(func(t *testing.T, text string) {
		_, objects, err := wire.ReadBatch(strings.NewReader(text))
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Errorf("error = %v, want one of kind Invalid", err)
			}
			return
		}
		w := wire.BatchWriter{Transfer: wire.Basic, Objects: `https://h/"x`, Authorization: "Bearer x", Expires: time.Minute}
		p := w.Begin(nil)
		for _, o := range objects {
			p = w.Append(p, o, &lfs.Status{State: lfs.Present})
		}
		var response wire.BatchResponse
		if err := json.Unmarshal(w.End(p), &response); err != nil || len(response.Objects) != len(objects) {
			t.Fatalf("response %s: error = %v, want %d objects", p, err, len(objects))
		}
		for i, o := range response.Objects {
			if parsed, err := o.Parse(); err != nil || parsed != objects[i] || o.Actions.Download.ExpiresIn != 60 {
				t.Errorf("object %d of the response = %+v, want %+v", i, o, objects[i])
			}
		}
	})
}
