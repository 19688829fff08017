package roles

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// compareLog is a log of nginx's with the given duration, in milliseconds, give or take.
func compareLog(t *testing.T, name string, ms int) string {
	t.Helper()
	var b bytes.Buffer
	for i := range 2000 {
		fmt.Fprintf(&b, `{"time_iso8601":"2026-11-22T04:05:%02dZ","request":"GET /a/%d HTTP/1.1","status":"200","request_time":"%.3f"}`+"\n", i*60/2000, i, float64(ms+i*7%11)/1000)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestCompareCommand(t *testing.T) {
	t.Parallel()
	a, b := compareLog(t, "a.log", 100), compareLog(t, "b.log", 130)
	page := filepath.Join(t.TempDir(), "report.html")
	main := func(args ...string) (stdout, stderr string, code int) {
		var out, errs bytes.Buffer
		code = Main(t.Context(), Env{Args: append([]string{"compare"}, args...), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs})
		return out.String(), errs.String(), code
	}
	out, errs, code := main(a, b, "--html", page)
	if code != exitOK || errs != "" || !strings.Contains(out, "GET /a/{id}") || !strings.Contains(out, "SLOWER") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	if text, err := os.ReadFile(page); err != nil || !bytes.Contains(text, []byte(`class="cell slower"`)) {
		t.Errorf("the page: %v\n%s", err, text)
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Log("there is no /dev/full here")
	} else if out, errs, code := main(a, b, "--html", "/dev/full"); code != exitFailed || !strings.Contains(out, "SLOWER") || !strings.Contains(errs, "no space") {
		t.Errorf("a page that cannot be written: exit %d\n%s%s", code, out, errs)
	}
	if out, _, code := main(a, b+".gz", "--html", page+"2"); code != exitFailed || out != "" {
		t.Errorf("a log that is not there: exit %d\n%s", code, out)
	}
	if _, err := os.Stat(page + "2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a page is left of nothing: %v", err)
	}
	if _, errs, _ := main(a+".gz", b, "--html", "/nowhere/x.html"); !strings.Contains(errs, "/nowhere/x.html") {
		t.Errorf("logs are read before it is known whether a page can be written: %s", errs)
	}
	var report struct {
		Rows []struct {
			Route string
			Cells []struct{ Verdict string }
		}
	}
	if out, _, code := main("--a", b, "--b", a, "--json"); code != exitOK || json.Unmarshal([]byte(out), &report) != nil || report.Rows[0].Cells[2].Verdict != "faster" {
		t.Errorf("exit %d\n%s", code, out)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{a}, exitUsage, "two logs"},
		{nil, exitUsage, "two logs"},
		{[]string{a, b, a}, exitUsage, "a quoted pattern"},
		{[]string{a, "--b", b}, exitUsage, "but not both"},
		{[]string{"--a", a}, exitUsage, "two logs"},
		{[]string{a, b, "--split", "pool"}, exitUsage, "one LOG"},
		{[]string{a, "--pools", "x,y"}, exitUsage, "two logs"},
		{[]string{a, b, "--pools", "x,y"}, exitUsage, "--split"},
		{[]string{a, b, "--by", "colour"}, exitUsage, "path or operation"},
		{[]string{a, b, "--format", "xml"}, exitUsage, "workhorse"},
		{[]string{a, b, "--unit", "h"}, exitUsage, "ms"},
		{[]string{a, b, "--rows", "0"}, exitUsage, "from 1"},
		{[]string{a, b, "--confidence", "NaN"}, exitUsage, "from 50"},
		{[]string{a, b, "--since", "soon"}, exitUsage, "2h"},
		{[]string{a, b, "--since", "1h", "--until", "2h"}, exitUsage, "before"},
		{[]string{a, b, "--route", "a/**/b"}, exitUsage, "--route"},
		{[]string{a, b, "--since", "2026-11-23"}, exitFailed, "outside the window"},
		{[]string{a, "--split", "pool"}, exitFailed, "no such field"},
		{[]string{a, b + ".gz"}, exitFailed, "no such file"},
		{[]string{a, b, "--html", "/nowhere/x.html"}, exitFailed, "/nowhere/x.html"},
	} {
		if _, errs, code := main(c.args...); code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%q: exit %d, %s; wanted %d and %q", c.args, code, errs, c.code, c.says)
		}
	}
}

// What a server logs of an application with two pools is compared by pool: all requests are found, on their side.
func TestComparePoolsOfAServer(t *testing.T) {
	t.Parallel()
	root := socketDir(t)
	appWorker(t, root+"/w0.sock")
	appWorker(t, root+"/w1.sock")
	config, log := filepath.Join(root, "config.toml"), filepath.Join(root, "log")
	text := "[app]\n[[app.pool]]\nname = \"puma\"\nshare = 50\nworkers = [\"unix:" + root + "/w0.sock\"]\n" +
		"[[app.pool]]\nname = \"falcon\"\nshare = 50\nworkers = [\"unix:" + root + "/w1.sock\"]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- Main(ctx, Env{Args: []string{"serve", "--root", root, "--config", config, "--http", "127.0.0.1:0", "--ops", ""}, Stdout: out, Stderr: out})
	}()
	var s started
	for deadline := time.Now().Add(time.Minute); s.HTTP == ""; time.Sleep(5 * time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(root, ".packhorse", "serve.json"))
		if _ = json.Unmarshal(text, &s); s.HTTP == "" && time.Now().After(deadline) {
			t.Fatal("the server does not start")
		}
	}
	const requests = 200
	for i := range requests {
		answer, err := http.Get(fmt.Sprintf("%s/users/%d/avatar", s.HTTP, i))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	}
	end()
	if code := <-ended; code != exitOK {
		text, _ := os.ReadFile(log)
		t.Fatalf("the server ended with %d:\n%s", code, text)
	}
	code, stdout, errs := runMain("compare", log, "--split", "pool", "--json")
	var report struct {
		Sides []struct {
			Name     string
			Requests int
		}
		Rows []struct{ Route string }
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != exitOK {
		t.Fatalf("exit %d, %v\n%s%s", code, err, stdout, errs)
	}
	a, b := report.Sides[0], report.Sides[1]
	if a.Name != "falcon" || b.Name != "puma" || a.Requests+b.Requests != requests || len(report.Rows) != 1 || report.Rows[0].Route != "GET /users/{id}/avatar" {
		t.Errorf("%+v", report)
	}
}

// mutePipe is a pipe into which nobody writes. Its first reader is told of.
type mutePipe struct {
	*io.PipeReader
	asked func()
}

func (s mutePipe) Read(p []byte) (int, error) {
	s.asked()
	return s.PipeReader.Read(p)
}

// Who waits for a pipe that says nothing can be interrupted.
func TestCompareIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	pipe, end := io.Pipe()
	defer end.Close()
	var errs bytes.Buffer
	code := Main(ctx, Env{Args: []string{"compare", "-", compareLog(t, "b.log", 100)}, Stdin: mutePipe{pipe, cancel}, Stdout: io.Discard, Stderr: &errs})
	if code != exitFailed || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("exit %d: %s", code, &errs)
	}
}
