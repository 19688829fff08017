package accesslog

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

const (
	appNginx     = `10.0.0.1 - alice [26/Nov/2026:01:00:00 +0100] "POST /acme/app.git/git-upload-pack HTTP/1.1" 200 1000 "-" "git/2.43.0"`
	appJSON      = `{"time_iso8601":"2026-11-26T00:00:00+00:00","request":"POST /acme/app.git/git-upload-pack HTTP/2.0","status":"200","body_bytes_sent":"1000"}`
	appWorkhorse = `{"correlation_id":"01","duration_ms":12,"method":"POST","msg":"access","status":200,"time":"2026-11-26T00:00:00Z","uri":"/acme/app.git/git-upload-pack","written_bytes":1000}`
	appGitea     = "gitea | 2026/11/26 00:00:00 \x1b[32m...eb/routing/logger.go:102:func1()\x1b[0m [I] router: " +
		"completed " +
		"POST /acme/app.git/git-upload-pack for 10.0.0.1:0, \x1b[1;32m200 OK\x1b[0m in 43.8ms @ " +
		"repo/githttp.go:5(repo.ServiceUploadPack)"
)

func TestRepository(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, target, path string
		kind                 kind
	}{
		{"POST", "/a/b.git/git-upload-pack", "a/b", post},
		{"POST", "https://host/a/b/git-upload-pack", "a/b", post},
		{"GET", "/a/b/info/refs?service=git-upload-pack", "a/b", advertisement},
		{"GET", "/a/b/info/refs?service=git-receive-pack", "", other},
		{"GET", "/a/b/git-upload-pack", "", other},
		{"POST", "/search?q=git-upload-pack", "", other},
		{"HEAD", "/a/b/info/refs?service=git-upload-pack", "", other},
	} {
		if path, kind := repository(c.method, c.target); path != c.path || kind != c.kind {
			t.Errorf("repository of %s %s = %q, %d, want %q, %d", c.method, c.target, path, kind, c.path, c.kind)
		}
	}
}

// line returns a line of nginx for a response of size bytes at a second of the log.
func line(second int, request string, status, size int) string {
	at := time.Date(2026, 11, 26, 0, 0, second, 0, time.UTC)
	return fmt.Sprintf("h - - [%s] %q %d %d \"-\" \"git\"\n", at.Format("02/Jan/2006:15:04:05 -0700"), request+" HTTP/1.1",
		status, size)
}

func read(t *testing.T, a Assumptions, logs ...string) *Report {
	t.Helper()
	r := NewEstimator(a)
	for _, log := range logs {
		if err := r.Read(context.Background(), strings.NewReader(log)); err != nil {
			t.Fatal(err)
		}
	}
	return r.Report(10)
}

func TestReport(t *testing.T) {
	t.Parallel()
	const fetch, refs = "POST /app.git/git-upload-pack", "GET /app.git/info/refs?service=git-upload-pack"
	var log strings.Builder
	for i := range 3 { // in protocol 2: the advertisement, ls-refs, the pack
		log.WriteString(line(i, refs, 200, 100) + line(i, fetch, 200, 0) + line(i, fetch, 200, 1e9+i))
	}
	log.WriteString(line(61, fetch, 200, 5e8) + line(59, fetch, 200, 5e8) + line(62, fetch, 401, 9e9) + "other\n")
	a := Assumptions{Window: time.Minute, CPUPerGB: 10, CPUPerFetch: 1}
	got := read(t, a, log.String())
	want := Totals{Fetches: 5, Distinct: 2, Bytes: 4e9 + 3, DistinctBytes: 15e8 + 2}
	want.CPU, want.SavedCPU = got.Total.CPU, got.Total.SavedCPU
	if got.Total != want || got.Lines != 13 || got.Unreadable != 0 || got.Advertised != 3 {
		t.Errorf("report = %+v of %d lines, %d unreadable, %d advertisements, want %+v of 13, 0, 3", got.Total, got.Lines,
			got.Unreadable, got.Advertised, want)
	}
	if cpu := got.Total.SavedCPU; cpu < 25 || cpu > 25.1 {
		t.Errorf("saved CPU = %v s, want 25", cpu)
	}
	var text bytes.Buffer
	if err := got.WriteText(&text); err != nil || !strings.Contains(text.String(), "60.0 %") {
		t.Errorf("text = %s, %v, want a share of 60.0 %%", &text, err)
	}
}

// A router log has no sizes, so that CPU time is for each fetch.
func TestReportWithoutSizes(t *testing.T) {
	t.Parallel()
	got := read(t, Assumptions{Window: time.Minute, CPUPerGB: 10, CPUPerFetch: 1}, strings.Repeat(appGitea+"\n", 4))
	if got.Total.Unsized != 4 || got.Total.CPU != 4 || got.Total.SavedCPU != 3 {
		t.Errorf("report = %+v, want 4 responses without a size, 4 s, 3 s saved", got.Total)
	}
}

func TestHostileLogs(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3*MaxLine)
	log := "git-upload-pack" + long + "\n" + long + "\n\x00\xff\xfe git-upload-pack\n" +
		line(0, "POST /"+strings.Repeat("p", 2*maxPath)+"/git-upload-pack", 200, 1) +
		line(0, "POST /\x1b[2J\xff/git-upload-pack", 200, 1) + line(0, "POST //git-upload-pack", 200, 1) + appNginx
	got := read(t, DefaultAssumptions(), log)
	if got.Unreadable != 2 || got.Lines != 7 || got.Total.Fetches != 4 {
		t.Errorf("lines, unreadable, fetches = %d, %d, %d, want 7, 2, 4", got.Lines, got.Unreadable, got.Total.Fetches)
	}
	for _, one := range got.Repositories {
		if len(one.Path) > maxPath {
			t.Errorf("a path has %d bytes, want at most %d", len(one.Path), maxPath)
		}
	}
	var text bytes.Buffer
	if err := got.WriteText(&text); err != nil || strings.Contains(text.String(), "\x1b") {
		t.Errorf("text = %q, %v, want no escape", &text, err)
	}
}

func TestManyRepositories(t *testing.T) {
	t.Parallel()
	r := NewEstimator(DefaultAssumptions())
	for i := range maxRepositories + 10 {
		r.add(fmt.Sprint(i), post, Entry{Time: time.Unix(1e9, 0), Bytes: 1 << 42})
	}
	if got := len(r.seen); got > maxRepositories+1 {
		t.Errorf("%d repositories are kept, want at most %d", got, maxRepositories+1)
	}
	if got := r.Report(5); len(got.Repositories) != 5 || got.Total.Bytes < 0 || got.Total.Fetches != maxRepositories+10 {
		t.Errorf("report = %d rows, %+v, want 5 rows and all fetches", len(got.Repositories), got.Total)
	}
}

func FuzzRead(f *testing.F) {
	for _, seed := range []string{appNginx, appJSON, appWorkhorse, appGitea, "{", "\x1f\x8b", "git-upload-pack"} {
		f.Add([]byte(seed + "\n" + seed))
	}
	f.Fuzz(func(t *testing.T, log []byte) {
		r := NewEstimator(DefaultAssumptions())
		if r.Read(context.Background(), bytes.NewReader(log)) != nil {
			return
		}
		report := r.Report(3)
		all := report.Total
		if all.Distinct > all.Fetches || all.DistinctBytes > all.Bytes || all.SavedCPU > all.CPU || all.Fetches < 0 ||
			all.DistinctBytes < 0 {
			t.Errorf("report = %+v, want parts not larger than the whole", all)
		}
		var text bytes.Buffer
		if err := report.WriteText(&text); err != nil {
			t.Error(err)
		}
	})
}
