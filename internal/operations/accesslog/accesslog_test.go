package accesslog

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

const (
	nginxLine  = `10.0.0.1 - alice [26/Nov/2026:01:00:00 +0100] "POST /a.git/git-upload-pack HTTP/1.1" 200 1000 "-" "git/2.43.0"`
	nginxJSON  = `{"time_iso8601":"2026-11-26T00:00:00+00:00","request":"POST /a.git/git-upload-pack HTTP/2.0","status":"200","body_bytes_sent":"1000","request_time":"0.012"}`
	workhorse  = `{"correlation_id":"01","duration_ms":12,"method":"POST","msg":"access","status":200,"time":"2026-11-26T00:00:00Z","uri":"/a.git/git-upload-pack","written_bytes":1000}`
	packhorse  = `{"time":"2026-11-26T00:00:00Z","level":"INFO","msg":"request","request":"ab 12","operation":"search","result":"ok","ms":12,"status":200,"method":"POST","path":"/a.git/git-upload-pack","bytes":1000}`
	ssh        = `{"time":"2026-11-26T00:00:00Z","level":"INFO","msg":"request","request":"ab 12","operation":"fetch","result":"ok","ms":12,"transport":"ssh"}`
	giteaLines = "gitea | 2026/11/26 00:00:00 \x1b[32m...eb/routing/logger.go:102:func1()\x1b[0m [I] router: completed " +
		"POST /a.git/git-upload-pack for 10.0.0.1:0, \x1b[1;32m200 OK\x1b[0m in 12.0ms @ repo/githttp.go:5(repo.Service)"
)

// TestParse parses the same request in each format.
func TestParse(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		line  string
		bytes int64
		took  time.Duration
	}{
		"combined":             {nginxLine, 1000, -1},
		"combined, rt":         {nginxLine + " rt=0.012", 1000, 12 * time.Millisecond},
		"combined, %D":         {nginxLine + " 12000", 1000, 12 * time.Millisecond},
		"combined, other last": {nginxLine + ` 0.012 host="x"`, 1000, 12 * time.Millisecond},
		"common":               {strings.TrimSuffix(nginxLine, ` "-" "git/2.43.0"`) + " 0.012", 1000, 12 * time.Millisecond},
		"nginx as JSON":        {nginxJSON, 1000, 12 * time.Millisecond},
		"Workhorse":            {workhorse, 1000, 12 * time.Millisecond},
		"Packhorse":            {packhorse, 1000, 12 * time.Millisecond},
		"Gitea's router":       {giteaLines, -1, 12 * time.Millisecond},
	} {
		e, err := Parse([]byte(c.line))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		took, err := ParseDuration(e.Duration, e.Unit)
		if err != nil {
			took = -1
		}
		if !e.Time.Equal(at) || e.Method != "POST" || e.Target != "/a.git/git-upload-pack" || e.Status != 200 ||
			e.Bytes != c.bytes || took != c.took {
			t.Errorf("%s: got %+v of %v, want %d bytes and %v", name, e, took, c.bytes, c.took)
		}
	}
	if e, err := Parse([]byte(ssh)); err != nil || e.Method != "" || e.Target != "" || e.Fields["operation"] != "fetch" {
		t.Errorf("SSH: got %+v, %v, want a request without a path", e, err)
	}
	if e, err := Parse([]byte(nginxLine + ` pool=new rt="0.5"`)); err != nil || e.Fields["pool"] != "new" ||
		e.Duration != "0.5" {
		t.Errorf("fields: got %+v, %v, want pool and rt", e, err)
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]error{
		"": errFormat, "{": errJSON, "[]": errFormat, "{}": errStatus, `{"uri":[]}`: errStatus,
		"router: completed git-upload-pack":                                  ErrOther,
		`{"msg":"started","time":"2026-11-26T00:00:00Z"}`:                    ErrOther,
		"a [b] \"POST /x/git-upload-pack\" 200":                              errFormat,
		strings.Replace(nginxLine, "26/Nov", "99/Nov", 1):                    errTime,
		strings.Replace(workhorse, "2026-11-26T00:00:00Z", "-1e999", 1):      errTime,
		strings.Replace(workhorse, `"status":200`, `"status":"many"`, 1):     errStatus,
		strings.Replace(packhorse, `"msg":"request"`, `"msg":"requests"`, 1): ErrOther,
	} {
		if got, err := Parse([]byte(line)); !errors.Is(err, want) {
			t.Errorf("Parse(%q) = %+v, %v, want %v", line, got, err, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0.010, 0.020 : -": 30 * time.Millisecond, "12ms": 12 * time.Millisecond, "1.5": 1500 * time.Millisecond,
		"0": 0, "1e-3": time.Millisecond, "7us": 7 * time.Microsecond, "2s": 2 * time.Second,
		"": -1, "-": -1, "-1": -1, "x": -1, "NaN": -1, "1e9": -1,
	} {
		got, err := ParseDuration(text, time.Second)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3*MaxLine)
	log := "first\r\n\n" + long + "\nlast"
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write([]byte(log)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{log, zipped.String()} {
		var got []string
		err := Lines(t.Context(), strings.NewReader(text), func(line []byte) { got = append(got, string(line)) })
		if err != nil || len(got) != 4 || got[0] != "first" || got[1] != "" || len(got[2]) != MaxLine+1 || got[3] != "last" {
			t.Errorf("got %d lines, %v, want 4, the third one cut", len(got), err)
		}
	}
	if err := Lines(t.Context(), bytes.NewReader(zipped.Bytes()[:zipped.Len()-6]), func([]byte) {}); err == nil {
		t.Error("a truncated file is read without an error, want one")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Lines(ended, strings.NewReader(log), func([]byte) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: got error %v, want %v", err, context.Canceled)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{nginxLine + ` rt="0.1" 5`, nginxJSON, workhorse, packhorse, ssh, giteaLines, "{"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := Parse(line)
		if err != nil {
			return
		}
		if d, err := ParseDuration(e.Duration, e.Unit); err == nil && (d < 0 || d > maxDuration) || e.Bytes > maxSize {
			t.Errorf("got %+v of %v, want a duration and a size within the limits", e, d)
		}
	})
}
