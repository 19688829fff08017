package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/server/cli"
)

// compareLog is a log of nginx with durations around ms milliseconds.
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

// runCommand runs the command with args.
func runCommand(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args ...string) int {
	root := &cobra.Command{Use: "packhorse-bench"}
	root.AddCommand(Command())
	return cli.Run(ctx, root, append([]string{"compare"}, args...), stdin, stdout, stderr)
}

func TestCompareCommand(t *testing.T) {
	t.Parallel()
	a, b := compareLog(t, "a.log", 100), compareLog(t, "b.log", 130)
	page := filepath.Join(t.TempDir(), "report.html")
	main := func(args ...string) (stdout, stderr string, code int) {
		var out, errs bytes.Buffer
		code = runCommand(t.Context(), strings.NewReader(""), &out, &errs, args...)
		return out.String(), errs.String(), code
	}
	out, errs, code := main(a, b, "--html", page)
	if code != cli.ExitOK || errs != "" || !strings.Contains(out, "GET /a/{id}") || !strings.Contains(out, "SLOWER") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	if text, err := os.ReadFile(page); err != nil || !bytes.Contains(text, []byte(`class="cell slower"`)) {
		t.Errorf("the page: %v\n%s", err, text)
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Log("there is no /dev/full here")
	} else if out, errs, code := main(a, b, "--html", "/dev/full"); code != cli.ExitFailed ||
		!strings.Contains(out, "SLOWER") || !strings.Contains(errs, "no space") {
		t.Errorf("a page that cannot be written: exit %d\n%s%s", code, out, errs)
	}
	if out, _, code := main(a, b+".gz", "--html", page+"2"); code != cli.ExitFailed || out != "" {
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
	if out, _, code := main("--a", b, "--b", a, "--json"); code != cli.ExitOK ||
		json.Unmarshal([]byte(out), &report) != nil || report.Rows[0].Cells[2].Verdict != "faster" {
		t.Errorf("exit %d\n%s", code, out)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{a}, cli.ExitUsage, "two logs"},
		{nil, cli.ExitUsage, "two logs"},
		{[]string{a, b, a}, cli.ExitUsage, "quote the pattern"},
		{[]string{a, "--b", b}, cli.ExitUsage, "but not both"},
		{[]string{"--a", a}, cli.ExitUsage, "two logs"},
		{[]string{a, b, "--split", "pool"}, cli.ExitUsage, "one LOG"},
		{[]string{a, "--pools", "x,y"}, cli.ExitUsage, "two logs"},
		{[]string{a, b, "--pools", "x,y"}, cli.ExitUsage, "--split"},
		{[]string{a, b, "--by", "colour"}, cli.ExitUsage, "path or operation"},
		{[]string{a, b, "--format", "xml"}, cli.ExitUsage, "workhorse"},
		{[]string{a, b, "--unit", "h"}, cli.ExitUsage, "ms"},
		{[]string{a, b, "--rows", "0"}, cli.ExitUsage, "from 1"},
		{[]string{a, b, "--confidence", "NaN"}, cli.ExitUsage, "from 50"},
		{[]string{a, b, "--since", "soon"}, cli.ExitUsage, "2h"},
		{[]string{a, b, "--since", "1h", "--until", "2h"}, cli.ExitUsage, "before"},
		{[]string{a, b, "--route", "a/**/b"}, cli.ExitUsage, "--route"},
		{[]string{a, b, "--since", "2026-11-23"}, cli.ExitFailed, "outside the window"},
		{[]string{a, "--split", "pool"}, cli.ExitFailed, "no such field"},
		{[]string{a, b + ".gz"}, cli.ExitFailed, "no such file"},
		{[]string{a, b, "--html", "/nowhere/x.html"}, cli.ExitFailed, "/nowhere/x.html"},
	} {
		if _, errs, code := main(c.args...); code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%q: exit %d, %s; want %d and %q", c.args, code, errs, c.code, c.says)
		}
	}
}

// mutePipe is a pipe without a writer. It signals its first read.
type mutePipe struct {
	*io.PipeReader
	asked func()
}

func (s mutePipe) Read(p []byte) (int, error) {
	s.asked()
	return s.PipeReader.Read(p)
}

// A read from a silent pipe can be interrupted.
func TestCompareIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	pipe, end := io.Pipe()
	defer end.Close()
	var errs bytes.Buffer
	code := runCommand(ctx, mutePipe{pipe, cancel}, io.Discard, &errs, "-", compareLog(t, "b.log", 100))
	if code != cli.ExitFailed || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("exit %d: %s", code, &errs)
	}
}
