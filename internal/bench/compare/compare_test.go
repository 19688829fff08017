package compare

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustTime(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// nginxLines writes n lines of a log.
func nginxLines(seed uint64, n int, more string, ms func(i int) float64) []byte {
	var b bytes.Buffer
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		fmt.Fprintf(&b, `{"time":"2026-11-22T04:%02d:%02d+00:00","request":"GET /a/%d HTTP/1.1","status":"200","request_time":"%.3f"%s}`+"\n",
			i*3600/n/60, i*3600/n%60, i, ms(i)/1000*(0.5+r.Float64()), more)
	}
	return b.Bytes()
}

func write(t *testing.T, name string, data []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func options(a, b string) Options {
	o := Options{A: []string{a}, Rows: 30, Confidence: 0.95, Workers: 2}
	if b != "" {
		o.B = []string{b}
	}
	return o
}

func run(t *testing.T, o Options) *Report {
	t.Helper()
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func packed(t *testing.T, data []byte, with string) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if with == "zstd" {
		var err error
		if w, err = zstd.NewWriter(&b); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The report does not depend on how a log is stored, nor on the number of workers.
func TestWaysIn(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	one := nginxLines(1, 30000, "", func(int) float64 { return 100 })
	two := nginxLines(2, 30000, "", func(int) float64 { return 130 })
	b := write(t, "b.log", two)
	want := run(t, options(write(t, "a.log", one), b))
	if v := want.Rows[0].Cells[0].Verdict; v != Slower || want.Rows[0].Route != "GET /a/{id}" ||
		want.Rows[0].A.Compared != 30000 {
		t.Fatalf("%+v", want.Rows[0])
	}
	set := t.TempDir()
	for name, data := range map[string][]byte{"access.log.2.gz": packed(t, one[:len(one)/3], "gzip"),
		"access.log.1": one[len(one)/3 : len(one)/2], "access.log": one[len(one)/2:]} {
		if i := bytes.LastIndexByte(data, '\n'); name == "access.log" && i < 0 {
			t.Fatal("no lines")
		}
		if err := os.WriteFile(filepath.Join(set, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	many := append(packed(t, one[:100000], "gzip"), packed(t, one[100000:], "gzip")...)
	for name, o := range map[string]Options{
		"gzip": options(write(t, "a", packed(t, one, "gzip")), b), "zstd": options(write(t, "a", packed(t, one, "zstd")), b),
		"several members": options(write(t, "a", many), b),
		"standard input": {A: []string{Stdin}, B: []string{b}, Stdin: bytes.NewReader(one), Rows: 30, Confidence: 0.95,
			Workers: 1},
	} {
		r := run(t, o)
		r.Sides[0].Name, r.Inputs[0].Files = want.Sides[0].Name, want.Inputs[0].Files
		x, _ := json.Marshal(want)
		y, _ := json.Marshal(r)
		if !bytes.Equal(x, y) {
			t.Errorf("%s: another report:\n%s\n%s", name, x, y)
		}
	}
	if r := run(t, options(filepath.Join(set, "access.log*"), b)); len(r.Inputs[0].Files) != 3 ||
		r.Rows[0].A.Compared < 29990 {
		t.Errorf("a rotated set: %+v", r.Rows[0])
	}
}

func TestOneLogOfTwoPools(t *testing.T) {
	t.Parallel()
	log := bytes.Split(append(nginxLines(1, 5000, `,"pool":"puma"`, func(int) float64 { return 100 }),
		nginxLines(2, 5000, `,"pool":"falcon"`, func(int) float64 { return 50 })...), []byte("\n"))
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(log), func(i, k int) { log[i], log[k] = log[k], log[i] })
	mixed := write(t, "x.log", bytes.Join(log, []byte("\n")))
	o := options(mixed, "")
	o.Split = "pool"
	r := run(t, o)
	if r.Sides[0].Name != "falcon" || r.Sides[1].Name != "puma" || r.Rows[0].Cells[0].Verdict != Slower ||
		len(r.Inputs) != 1 || r.Rows[0].B.Compared != 5000 {
		t.Errorf("%+v: %+v", r.Sides, r.Rows[0])
	}
	o.Pools = []string{"puma", "falcon"}
	if r := run(t, o); r.Sides[0].Name != "puma" || r.Rows[0].Cells[0].Verdict != Faster {
		t.Errorf("%+v: %+v", r.Sides, r.Rows[0])
	}
	third := write(t, "y.log", append(append(bytes.Join(log, []byte("\n")), '\n'),
		nginxLines(3, 10, `,"pool":"x\u001b[2J"`, func(int) float64 { return 1 })...))
	o = options(third, "")
	o.Split = "pool"
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(),
		`falcon, puma, x\u001b[2J: choose two with --pools falcon,puma`) {
		t.Errorf("three pools: %v", err)
	}
	o.Pools = []string{"puma", "falcon"}
	if r := run(t, o); r.Inputs[0].Unsplit != 10 {
		t.Errorf("%d lines of others, want 10", r.Inputs[0].Unsplit)
	}
	o.Split, o.Pools = "nothing", nil
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no such field") {
		t.Errorf("no such field: %v", err)
	}
}

// Pools may have long names that differ only at the end, such as those of Kubernetes.
func TestPoolsOfLongNames(t *testing.T) {
	t.Parallel()
	common := strings.Repeat("production-eu-central-1-", 10)
	old, fresh := common+"old", common+"new"
	pool := func(name string) string { return `,"pool":"` + name + `"` }
	log := append(nginxLines(1, 2000, pool(old), func(int) float64 { return 100 }),
		nginxLines(2, 2000, pool(fresh), func(int) float64 { return 300 })...)
	log = append(log, nginxLines(3, 10, pool(strings.Repeat("x", maxPool+1)), func(int) float64 { return 1 })...)
	o := options(write(t, "x.log", log), "")
	o.Split = "pool"
	for range 2 {
		r := run(t, o)
		if r.Rows[0].A.Compared != 2000 || r.Rows[0].B.Compared != 2000 || r.Inputs[0].Malformed[errPool.Error()] != 10 {
			t.Errorf("%+v, malformed %v", r.Rows[0], r.Inputs[0].Malformed)
		}
		if want := map[bool]Verdict{true: Faster,
			false: Slower}[r.Sides[1].Name == fresh]; r.Rows[0].Cells[0].Verdict == want || len(o.Pools) > 0 &&
			r.Sides[0].Name != old {
			t.Errorf("%s against %s: %s", r.Sides[1].Name, r.Sides[0].Name, r.Rows[0].Cells[0].Verdict)
		}
		o.Pools = []string{old, fresh}
	}
}

func TestErrorsTeach(t *testing.T) {
	t.Parallel()
	good := nginxLines(1, 100, "", func(int) float64 { return 1 })
	b := write(t, "b.log", good)
	cut := packed(t, nginxLines(1, 50000, "", func(int) float64 { return 1 }), "gzip")
	for want, data := range map[string][]byte{
		"is empty":       []byte("\n \n"),
		"unknown format": []byte("hello\nworld\n"),
		"log.format = \"json\"": []byte(`time=2026-11-22T04:05:06Z level=INFO msg=request operation=fetch ms=1` +
			"\n"),
		"the compressed file is truncated": cut[:len(cut)/2],
		"xz is not supported":              []byte("\xfd7zXZ\x00abc"),
		"bzip2 is not supported":           []byte("BZh9abc"),
		"escape=json":                      []byte(`{"request":"GET / HTTP/1.1","agent":"a\x22b","status":200,"request_time":"0.1"}` + "\n"),
		"other data follows":               append(packed(t, good, "gzip"), make([]byte, 100)...),
		"name its field with --duration":   []byte(strings.Repeat(`{"request":"GET / HTTP/1.1","status":200}`+"\n", 10)),
		"malformed lines: a negative dur":  []byte(strings.Repeat(`{"request":"GET / HTTP/1.1","status":200,"request_time":-1}`+"\n", 10)),
	} {
		if _, err := Run(t.Context(), options(write(t, "a.log", data), b)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	// After a whole gzip file: data that cannot be a member, and the beginning of possible members.
	for more, want := range map[string]string{"junk\n": "other data follows", "\x00": "other data follows",
		"\x1f": "the compressed file is truncated", "\x1f\x8b\x08": "the compressed file is truncated"} {
		if _, err := Run(t.Context(), options(write(t, "a.gz", append(packed(t, good, "gzip"), more...)), b)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("gzip and %q: %v, not %q", more, err, want)
		}
	}
	var wide bytes.Buffer
	w, err := zstd.NewWriter(&wide, zstd.WithWindowSize(2*maxWindow), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // in two writes, so that the writer does not know the length
		if _, err := w.Write(good); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), options(write(t, "a.zst", wide.Bytes()), b)); err == nil ||
		!strings.Contains(err.Error(), "--long=31") {
		t.Errorf("a large window: %v", err)
	}
	dir := t.TempDir()
	for want, name := range map[string]string{"is a directory": dir, "no file matches": dir + "/*.log",
		"no such file": dir + "/x"} {
		if _, err := Run(t.Context(), options(name, b)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for want, bad := range map[string]string{ // the second of two files
		"no such file": filepath.Join(dir, "none"), "is a directory": dir,
		"bzip2 is not supported": write(t, "c.log", []byte("BZh9abc")),
		"unexpected EOF":         write(t, "d.log", []byte("\x1f\x8bnone")),
	} {
		o := options(b, b)
		o.A = []string{b, bad}
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the second file, %s: %v", bad, err)
		}
	}
	o := options(Stdin, Stdin)
	o.Stdin = bytes.NewReader(good)
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "only one log can be") {
		t.Errorf("standard input twice: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, options(b, b)); !errors.Is(err, context.Canceled) {
		t.Errorf("when it is over: %v", err)
	}
}

func TestPeriod(t *testing.T) {
	t.Parallel()
	first := mustTime(t, "2025-11-24T16:00:00Z")
	for last, want := range map[string]string{
		"2025-11-24T18:51:40Z": "2025-11-24 16:00:00 to 18:51:40 Z",
		"2025-11-25T10:51:40Z": "2025-11-24 16:00:00 to 2025-11-25 10:51:40 Z",
		"2025-12-24T16:51:40Z": "2025-11-24 16:00:00 to 2025-12-24 16:51:40 Z",
	} {
		var text bytes.Buffer
		r := Report{Inputs: []Input{{First: first, Last: mustTime(t, last)}}}
		if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), ", "+want+"\n") {
			t.Errorf("%v; no %q in:\n%s", err, want, text.String())
		}
	}
}

// endless generates lines with new paths, a block at a time.
type endless struct {
	made, lines, blocks int
	cut                 int // lines too long
	block, rest, long   []byte
	at                  []int // offsets of the changing paths in the block
}

const blockLines = 500

func newEndless(lines int) *endless {
	e := &endless{lines: lines, long: bytes.Repeat([]byte("x"), 8<<20)}
	for i := range blockLines {
		path := "popular"
		e.block = append(e.block, `{"request":"GET /`...)
		if i%2 == 0 {
			path = "......"
			e.at = append(e.at, len(e.block))
		}
		e.block = fmt.Appendf(e.block, `%s HTTP/1.1","status":200,"request_time":0.%03d}`+"\n", path, i)
	}
	return e
}

func (e *endless) Read(p []byte) (int, error) {
	if len(e.rest) == 0 {
		if e.made == e.lines {
			return 0, io.EOF
		}
		if e.blocks++; e.blocks%(e.lines/blockLines/4) == 2 {
			e.rest = append(e.long, '\n')
			e.cut++
		} else {
			for _, at := range e.at {
				for n, k := e.made, at; k < at+6; k++ {
					e.block[k] = 'g' + byte(n%20)
					n /= 20
				}
				e.made += 2
			}
			e.rest = e.block
		}
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// TestMemoryIsBounded reads two million lines, each with another path, and lines longer than the memory limit. It is
// not parallel, because the heap is that of all running tests.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	lines := 2_000_000
	if raceEnabled { // which takes ten times as long
		lines = 200_000
	}
	log := newEndless(lines)
	b := write(t, "b.log", nginxLines(1, 5000, "", func(int) float64 { return 1 }))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most := uint64(0)
	o := options(Stdin, b)
	o.Stdin = log
	looks := 0
	o.Progress = func(Progress) {
		if looks++; looks%16 == 0 {
			runtime.ReadMemStats(&after)
			most = max(most, after.HeapSys)
		}
	}
	r := run(t, o)
	if got := r.Rows[0]; got.Route != "GET /popular" || got.A.Compared != uint64(lines/2) {
		t.Errorf("%s: %d", got.Route, got.A.Compared)
	}
	if n := r.Inputs[0].Malformed[errLine.Error()]; n != log.cut || n < 4 {
		t.Errorf("%d lines too long: %v", n, r.Inputs[0].Malformed)
	}
	if !strings.Contains(strings.Join(r.Notes, "\n"), "The logs have more than 512 routes") {
		t.Errorf("notes: %q", r.Notes)
	}
	sum := uint64(0)
	for _, row := range r.Rows {
		sum += row.A.Compared
	}
	if len(r.Rows) > 31 || sum != uint64(lines) || r.Rows[len(r.Rows)-1].Route != Other {
		t.Errorf("%d rows with %d requests", len(r.Rows), sum)
	}
	if grown := int64(most) - int64(before.HeapSys); grown > 128<<20 {
		t.Errorf("the heap has grown by %d MB", grown>>20)
	}
}

// Clients choose paths: they must not control the terminal or inject HTML into the page.
func TestHostilePaths(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	for i := range 300 {
		path := []string{`/<script>alert(1)<\/script>`, `/\u001b[2J\u009b31m`, `/\u202e&quot;\"onmouseover=x`, "/\xff\xfe", `/a`}[i%5]
		fmt.Fprintf(&b, `{"time":"2026-11-22T04:05:%02dZ","request":"GET %s HTTP/1.1","status":200,"request_time":0.%03d}`+"\n", i%60, path, i)
	}
	b.WriteString("junk \x1b]0;title\x07\x9b2J\n{\"request\":\"\x1b[1m")
	log := write(t, "a\x1b.log", b.Bytes())
	r := run(t, options(log, log))
	for _, row := range r.Rows {
		if !strings.HasPrefix(row.Route, "GET /") {
			t.Errorf("the route %q", row.Route)
		}
	}
	var text, page bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteHTML(&page, mustTime(t, "2026-11-22T04:05:06Z")); err != nil {
		t.Fatal(err)
	}
	for name, out := range map[string]string{"text": text.String(), "page": page.String()} {
		if i := strings.IndexFunc(out, func(c rune) bool {
			return c < ' ' && c != '\n' || c >= 0x7f && c < 0xa0 || c == 0x202e
		}); i >= 0 {
			t.Errorf("the %s has %q", name, out[i:min(i+20, len(out))])
		}
		if strings.Contains(out, "ZgotmplZ") {
			t.Errorf("the %s has something that its template refused", name)
		}
	}
	if strings.Contains(page.String(), "<script") || strings.Contains(page.String(), `"onmouseover`) {
		t.Error("the page contains a path as HTML, want it escaped")
	}
	wellFormed(t, page.String())
	if tables := strings.Count(page.String(), "<table"); tables != 4 || strings.Count(page.String(), `<div class="wide`) != tables {
		t.Error("a table is outside of a scrolling element, want it inside")
	}
	for name, out := range map[string]string{"text": text.String(), "page": page.String()} {
		if !strings.Contains(out, "malformed: no JSON object (2)") {
			t.Errorf("the %s does not say why lines are malformed:\n%s", name, out)
		}
	}
	if !strings.Contains(text.String(), "2 malformed") || !strings.Contains(text.String(), `junk \u001b]0;title\u0007\x9b2J`) {
		t.Errorf("malformed lines are not shown:\n%s", text.String())
	}
	var out bytes.Buffer
	if err := r.WriteJSON(&out); err != nil || !json.Valid(out.Bytes()) {
		t.Errorf("%v, %s", err, out.Bytes())
	}
}

// wellFormed checks that elements are closed in their order. It closes HTML's empty elements first.
func wellFormed(t *testing.T, page string) {
	t.Helper()
	page = regexp.MustCompile(`<meta[^>]*>`).ReplaceAllString(strings.TrimPrefix(page, "<!doctype html>"), "")
	d := xml.NewDecoder(strings.NewReader(page))
	d.Entity = xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("the page: %v", err)
		}
	}
}

func TestRoomForRoutes(t *testing.T) {
	t.Parallel()
	for routes, want := range map[int]bool{maxRoutes: false, maxRoutes + 1: true} {
		table := newTable([classes]bool{answered: true}, "", nil)
		for i := range routes {
			name := fmt.Appendf(nil, "GET /%d", i)
			end := uint32(len(name))
			records := []record{{ns: 1e6, routeEnd: end, poolEnd: end}}
			if err := table.add(&batch{names: name, records: records, lines: 1}, i%2); err != nil {
				t.Fatal(err)
			}
		}
		table.sides[0].files, table.sides[1].files = []string{"a"}, []string{"b"}
		notes := strings.Join(table.report(byPath, 0.95, 30).Notes, "\n") // with rows for 30 routes
		if got := strings.Contains(notes, "rows may lack requests"); got != want {
			t.Errorf("%d routes: %q", routes, notes)
		}
	}
}

func TestFailuresAreApart(t *testing.T) {
	t.Parallel()
	var a, b bytes.Buffer
	for i := range 4000 {
		fmt.Fprintf(&a, `{"request":"GET /a HTTP/1.1","status":200,"request_time":"0.1%02d"}`+"\n", i%100)
		status, ms := 200, 100+i%100
		if i%4 == 0 {
			status, ms = []int{500, 499, 404, 429}[i/4%4], 1
		}
		fmt.Fprintf(&b, `{"request":"GET /a HTTP/1.1","status":%d,"request_time":"0.%03d"}`+"\n", status, ms)
	}
	o := options(write(t, "a", a.Bytes()), write(t, "b", b.Bytes()))
	r := run(t, o)
	s := r.Sides[1]
	if s.Answered != 3000 || s.Failed != 500 || s.Gone != 250 || s.Refused != 250 || r.Rows[0].Cells[0].Verdict != Even {
		t.Errorf("%+v: %+v", s, r.Rows[0].Cells[0])
	}
	if !strings.Contains(strings.Join(r.Notes, "\n"), "a server that fails slow requests looks fast") {
		t.Errorf("notes: %q", r.Notes)
	}
	o.Failures = true
	if r := run(t, o); r.Rows[0].B.Compared != 4000 || r.Rows[0].Cells[0].Verdict != Faster {
		t.Errorf("mixed in: %+v", r.Rows[0])
	}
}
