package compare

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A log is empty after its rotation.
func TestRotatedSetBeginsEmpty(t *testing.T) {
	t.Parallel()
	lines := nginxLines(1, 3000, "", func(int) float64 { return 100 })
	set := t.TempDir()
	for name, data := range map[string][]byte{"access.log": nil, "access.log.1": packed(t, nil, "gzip"),
		"access.log.2": lines, "access.log.3": nil, "access.log.4": packed(t, lines, "zstd")} {
		if err := os.WriteFile(filepath.Join(set, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := run(t, options(filepath.Join(set, "access.log*"), write(t, "b.log", lines)))
	if in := r.Inputs[0]; in.Format != Nginx || in.Lines != 6000 || len(in.Files) != 5 || r.Rows[0].A.Compared != 6000 {
		t.Errorf("%+v: %+v", in, r.Rows[0])
	}
}

// The output of pzstd begins with a frame that has the length of the next one.
func TestSkippableFrames(t *testing.T) {
	t.Parallel()
	lines := nginxLines(1, 100, "", func(int) float64 { return 100 })
	log := write(t, "a.zst", append([]byte("\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"), packed(t, lines, "zstd")...))
	if r := run(t, options(log, log)); r.Rows[0].A.Compared != 100 {
		t.Errorf("%+v", r.Rows[0])
	}
}

func TestSplitByYesAndNo(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	for i := range 400 {
		fmt.Fprintf(&b, `{"request":"GET /%s HTTP/1.1","status":200,"request_time":"0.1","canary":%v}`+"\n",
			[]string{"a", `\u0061`}[i%3/2], i%4 == 0)
	}
	o := options(write(t, "a.log", b.Bytes()), "")
	o.Split = "canary"
	if r := run(t, o); r.Sides[0].Name != "false" || r.Sides[0].Requests != 300 || r.Sides[1].Name != "true" ||
		r.Sides[1].Requests != 100 {
		t.Errorf("%+v", r.Sides)
	}
}

// By operation, requests other than Git's are not comparable.
func TestOtherOperationsAreNotAlike(t *testing.T) {
	t.Parallel()
	var a, b bytes.Buffer
	for i := range 4000 {
		operation := []string{"other", "push"}[i%2]
		fmt.Fprintf(&a, `{"msg":"request","operation":"%s","result":"ok","ms":%d,"status":200,"method":"GET","path":"/a"}`+"\n", operation, 10+i%7)
		fmt.Fprintf(&b, `{"msg":"request","operation":"%s","result":"ok","ms":%d,"status":200,"method":"GET","path":"/b"}`+"\n", operation, 20+i%7)
	}
	o := options(write(t, "a.log", a.Bytes()), write(t, "b.log", b.Bytes()))
	o.Operations = true
	r := run(t, o)
	if len(r.Rows) != 2 || r.Rows[0].Route != "push" || r.Rows[0].Cells[0].Verdict != Slower || r.Rows[1].Route != Other ||
		r.Rows[1].Cells[0].Verdict != NotAlike ||
		r.Rows[1].A.Compared != 2000 || r.SameMix != nil {
		t.Errorf("%+v, in the same mix %+v", r.Rows, r.SameMix)
	}
	if len(r.Notes) != 2 || r.Notes[1] != `50 % of all requests are in "other"; --by path separates them.` {
		t.Errorf("notes: %q", r.Notes)
	}
}
