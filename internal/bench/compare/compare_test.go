package compare

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/operations/accesslog"
	"github.com/packhorse-git/packhorse/internal/server/cli"
)

func TestRoutes(t *testing.T) {
	t.Parallel()
	var patterns []Pattern
	for _, text := range []string{"/users/*/avatar", "/static/**"} {
		p, err := ParsePattern(text)
		if err != nil {
			t.Fatal(err)
		}
		patterns = append(patterns, p)
	}
	for path, want := range map[string]string{
		"/":                                    "/",
		"/a/b?token=x":                         "/a/b",
		"/a/17/b":                              "/a/{id}/b",
		"/v4/x":                                "/v4/x",
		"http://host/a/1":                      "/a/{id}",
		"http://host":                          "/",
		"/team/app.git/info/refs?service=":     "/{repo}/info/refs",
		"/team/app/git-upload-pack":            "/{repo}/git-upload-pack",
		"/app/git-receive-pack":                "/{repo}/git-receive-pack",
		"/team/app.git/info/lfs/objects/batch": "/{repo}/info/lfs/objects/batch",
		"/team/app.git":                        "/{repo}",
		"/team/app.git/objects/ab/0123456789abcdef0123456789abcdef012345": "/{repo}/objects/ab/{hash}",
		"/objects/list": "/objects/list",
		"/team/sub/app/-/merge_requests/17/diffs":              "/{repo}/-/merge_requests/{id}/diffs",
		"/team/app/-/blob/main/a/b/c.go":                       "/{repo}/-/blob/{ref}",
		"/-/blob/team/app/0123abc/x/y":                         "/-/blob/{repo}/{ref}",
		"/-/api/v1/search":                                     "/-/api/v1/search",
		"/api/v4/projects/team%2Fapp/repository":               "/api/v4/projects/{repo}/repository",
		"/x/123e4567-e89b-12d3-a456-426614174000":              "/x/{uuid}",
		"/assets/application-0a1b2c3d4e5f.js":                  "/assets/application-{hash}.js",
		"/reports/2026-11-22.csv":                              "/reports/{id}-11-22.csv",
		"/dl/aGVsbG8gd29ybGQgMTIzNDU2":                         "/dl/{token}",
		"/feedbed/facade":                                      "/feedbed/facade",
		"/users/joe/avatar":                                    "/users/*/avatar",
		"/users/joe/avatar/x":                                  "/users/joe/avatar/x",
		"/users//avatar":                                       "/users//avatar",
		"/static/a/b/c":                                        "/static/**",
		"/1/2/3/4/5/6/7/8/9/10/11/12":                          "/{id}" + strings.Repeat("/{id}", 9) + "/{...}",
		"/" + strings.Repeat("x", 5000):                        "/{token}",
		"/" + strings.Repeat(strings.Repeat("ab-", 15)+"/", 9): "",
	} {
		got := routeOf(&accesslog.Entry{Method: "GET", Target: path}, false, patterns)
		if got != "GET "+want && want != "" || len(got) > maxRouteBytes+10 {
			t.Errorf("route of %.80s = %s, want %s", path, got, want)
		}
	}
	for _, bad := range []string{"users", "/a/**/b", "/" + strings.Repeat("x", 300)} {
		if _, err := ParsePattern(bad); err == nil {
			t.Errorf("ParsePattern(%.40s) accepts it, want an error", bad)
		}
	}
}

// TestOwnRoutes reads lines of Packhorse's log.
func TestOwnRoutes(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][2]string{
		`"operation":"fetch","result":"ok","status":200,"haves":0,"pack":"hit"`: {"POST /{repo}/git-upload-pack", "clone"},
		`"operation":"fetch","result":"ok","status":200,"haves":9,"pack":"hit"`: {"POST /{repo}/git-upload-pack", "fetch"},
		`"operation":"fetch","result":"ok","status":200,"haves":9`:              {"POST /{repo}/git-upload-pack", "negotiate"},
		`"operation":"info_refs","result":"ok","status":200`:                    {"GET /{repo}/info/refs", "info_refs"},
		`"operation":"push","result":"internal","transport":"ssh"`:              {"SSH /{repo}/git-receive-pack", "push"},
		`"operation":"page","result":"ok","status":200,"method":"GET","path":"/-/raw/a/b/c"`: {
			"GET /-/raw/{repo}/{ref}", "page"},
	} {
		e, err := accesslog.Parse([]byte(`{"msg":"request","ms":7,` + line + "}"))
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]string{routeOf(&e, false, nil), routeOf(&e, true, nil)}; got != want {
			t.Errorf("routes of %s = %q, want %q", line, got, want)
		}
	}
}

// sample draws n durations with a heavy tail.
func sample(rnd *rand.Rand, n int, scale float64) *dist {
	var s sketch
	for range n {
		s.add(time.Duration(scale * 1e6 * (1 + rnd.ExpFloat64()*rnd.ExpFloat64())))
	}
	return s.dist()
}

// TestIntervals compares pairs of samples with a known difference. The intervals contain it about as often as they
// promise.
func TestIntervals(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	const pairs, ratio = 100, 1.1
	for _, q := range percentiles {
		missed := 0
		for range pairs {
			a, b := spreadOf(sample(rnd, 2000, 1), q.p), spreadOf(sample(rnd, 2000, ratio), q.p)
			if i := interval(a, b, 0.05, func(a, b float64) float64 { return b / a }); ratio < i[0] || ratio > i[1] {
				missed++
			}
		}
		if share := float64(missed) / pairs; share > 0.12 {
			t.Errorf("%s: %.1f %% of the intervals miss the truth, want about 5", q.name, 100*share)
		}
	}
}

func TestSketch(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	var s sketch
	var all []time.Duration
	for range 5000 {
		d := time.Duration(rnd.Int64N(1 << (1 + rnd.IntN(50))))
		low, high := bucketRange(bucketOf(d))
		if float64(d) < low || float64(d) >= high || high-low > max(1, 0.008*low) {
			t.Fatalf("the bucket of %d is %v to %v", d, low, high)
		}
		s.add(d)
		all = append(all, d)
	}
	slices.Sort(all)
	for _, p := range []float64{0.1, 0.5, 0.9} {
		want := float64(all[int(p*5000)])
		if got := s.dist().quantile(p); got < 0.98*want || got > 1.02*want+1 {
			t.Errorf("quantile(%v) = %v, want about %v", p, got, want)
		}
	}
}

// log writes a log of n requests of three routes, which take ms and more.
func log(t *testing.T, name string, n, ms int) string {
	t.Helper()
	var b bytes.Buffer
	for i := range n {
		status := 200
		if i%50 == 7 {
			status = 404
		}
		fmt.Fprintf(&b, `{"time":"2026-11-22T04:%02d:%02dZ","request":"GET /%c/%d HTTP/1.1","status":%d,"request_time":0.%03d,`+
			`"pool":"%s"}`+"\n", i/60%60, i%60, 'a'+i%3, i, status, ms+i%37, []string{"puma", "falcon"}[i%2])
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// command runs the command with arguments.
func command(t *testing.T, stdin io.Reader, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	root := &cobra.Command{Use: "packhorse-bench"}
	root.AddCommand(Command())
	var out, errs bytes.Buffer
	code = cli.Run(t.Context(), root, append([]string{"compare"}, args...), stdin, &out, &errs)
	return out.String(), errs.String(), code
}

func TestCompare(t *testing.T) {
	t.Parallel()
	a, b := log(t, "a.log", 3000, 100), log(t, "b.log", 3000, 130)
	out, errs, code := command(t, nil, a, b, "--json")
	var r Report
	if err := json.Unmarshal([]byte(out), &r); code != 0 || err != nil || errs != "" {
		t.Fatalf("exit %d, %v\n%s%s", code, err, out, errs)
	}
	if s := r.Sides[0]; s.Requests != 3000 || s.Answered != 2940 || s.Refused != 60 || s.Compared != 2940 ||
		len(r.Rows) != 3 || r.Rows[0].Route != "GET /a/{id}" {
		t.Errorf("got %+v, want 3000 requests of three routes", r)
	}
	for _, row := range r.Rows {
		for _, c := range row.Cells[:2] {
			if i := c.DifferenceInterval; *c.Ratio < 1.2 || i[0] > 30 || i[1] < 30 || c.RatioInterval[0] < 1.1 {
				t.Errorf("%s %s: got %+v, want a difference of 30 ms", row.Route, c.Of, c)
			}
		}
		if c := row.Cells[2]; c.RatioInterval != nil || c.Needs != 1000 { // p99 of 980 requests
			t.Errorf("%s: got %+v, want no interval", row.Route, c)
		}
	}
	out, _, _ = command(t, nil, a, b, "--rows", "1")
	for _, want := range []string{"GET /a/{id}", "other", "1000 requests on each side are needed", "not comparable"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if out, errs, code = command(t, nil, a, "--split", "pool", "--failures"); code != 0 ||
		!strings.Contains(out, "A  falcon: 1500 requests") || !strings.Contains(out, "B  puma: 1500 requests") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	out, errs, code = command(t, nil, a, "--split", "pool", "--since", "2026-11-22T04:10:00Z",
		"--until", "2026-11-22T04:20:00Z")
	if code != 0 || !strings.Contains(out, "B  puma: 300 requests") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

// TestPackedLogs reads standard input, a pattern, gzip and zstd.
func TestPackedLogs(t *testing.T) {
	t.Parallel()
	plain := log(t, "a.log", 300, 100)
	text, err := os.ReadFile(plain)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, pack := range map[string]func(io.Writer) io.WriteCloser{
		"x.log.1": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"x.log.2": func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z },
	} {
		var b bytes.Buffer
		w := pack(&b)
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, errs, code := command(t, bytes.NewReader(text), "-", filepath.Join(dir, "x.log*"))
	if code != 0 || !strings.Contains(out, "A  -: 300 requests") || !strings.Contains(out, ": 600 requests") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	root := Command()
	root.SetArgs([]string{"-", plain})
	root.SetIn(r)
	root.SilenceUsage, root.SilenceErrors = true, true
	if err := root.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("a pipe that does not end: got error %v, want an interruption", err)
	}
}

func TestMisuse(t *testing.T) {
	t.Parallel()
	a, b := log(t, "a.log", 30, 100), log(t, "b.log", 30, 130)
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"A":                              {cli.ExitUsage, "two logs"},
		"":                               {cli.ExitUsage, "two logs"},
		"A B A":                          {cli.ExitUsage, "Quote the pattern"},
		"A --b B":                        {cli.ExitUsage, "but not both"},
		"--a A":                          {cli.ExitUsage, "two logs"},
		"A B --split pool":               {cli.ExitUsage, "--split FIELD"},
		"- -":                            {cli.ExitUsage, "standard input"},
		"A B --by colour":                {cli.ExitUsage, "path or operation"},
		"A B --unit h":                   {cli.ExitUsage, "ms"},
		"A B --rows 0":                   {cli.ExitUsage, "from 1"},
		"A B --since soon":               {cli.ExitUsage, "2h"},
		"A B --since 1h --until 2h":      {cli.ExitUsage, "before"},
		"A B --route a/**/b":             {cli.ExitUsage, "--route"},
		"A B --since 2026-11-23":         {cli.ExitFailed, "30 outside the window"},
		"A --split colour":               {cli.ExitFailed, "field colour"},
		"A B.gz":                         {cli.ExitFailed, "no such file"},
		"A B --duration upstream":        {cli.ExitFailed, "30 malformed lines: no duration"},
		"A B --duration request --split": {cli.ExitUsage, "argument"},
	} {
		args := strings.Fields(line)
		for i := range args {
			args[i] = strings.NewReplacer("A", a, "B", b).Replace(args[i])
		}
		if _, errs, code := command(t, nil, args...); code != want.code || !strings.Contains(errs, want.text) {
			t.Errorf("compare %s: got exit %d, %s; want %d and %q", line, code, errs, want.code, want.text)
		}
	}
}

// TestHostileLogs has paths that would control a terminal, and very many of them.
func TestHostileLogs(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	for i := range 5000 {
		path := []string{`/\u001b[2J\u009b31m`, "/\xff\xfe", fmt.Sprintf("/p%d", i)}[i%3]
		fmt.Fprintf(&b, `{"time":"2026-11-22T04:05:06Z","request":"GET %s HTTP/1.1","status":200,"request_time":0.%03d}`+"\n", path,
			i%1000)
	}
	b.WriteString("junk \x1b]0;title\x07\x9b2J\n")
	out, errs, code := command(t, &b, "-", log(t, "b.log", 10, 1))
	if i := strings.IndexFunc(out, func(c rune) bool { return c < ' ' && c != '\n' || c >= 0x7f && c < 0xa0 }); i >= 0 ||
		code != 0 || !strings.Contains(out, "1 malformed") || !strings.Contains(out, "other") {
		t.Errorf("exit %d, a control character at %d\n%s%s", code, i, out, errs)
	}
}
