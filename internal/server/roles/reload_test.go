package roles

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

func TestReload(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "packhorse.toml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const a = "[[node]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\n"
	write(a)
	flags := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
	src := config.AddFlags(flags, config.RoleGateway, getenv([]string{"HOME=/home/git"}...))
	if err := flags.Parse([]string{"--config", file, "--http", "127.0.0.1:1234"}); err != nil {
		t.Fatal(err)
	}
	cfg, err := src.LoadChecked()
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	var taken []config.NodeConfig
	var refuse error
	level := new(slog.LevelVar)
	r := &reloader{source: src, running: cfg, level: level, log: slog.New(slog.NewTextHandler(&logged, nil)),
		apply: func(c config.Config) error {
			if refuse == nil {
				taken = c.Node
			}
			return refuse
		}}
	reload := func() string {
		logged.Reset()
		r.reload()
		return logged.String()
	}

	write(a + "[[node]]\nname = \"b\"\naddress = \"127.0.0.1:2\"\n[log]\nlevel = \"debug\"\n")
	if got := reload(); len(taken) != 2 || level.Level() != slog.LevelDebug || !strings.Contains(got, "nodes=2") ||
		strings.Contains(got, "restart") {
		t.Errorf("new node: nodes = %v, level = %s, want 2 nodes without a restart\n%s", taken, level, got)
	}
	if err := errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := reload(); len(taken) != 2 || !strings.Contains(got, "a pipe without a writer") {
		t.Errorf("named pipe: nodes = %v, want the previous 2\n%s", taken, got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	write(a + "[http]\naddress = \"127.0.0.1:1\"\nmax_body = \"1MiB\"\n[ops]\naddress = \"\"\n")
	for range 2 { // each reload reports it; the flag has priority over the file
		if got := reload(); len(taken) != 1 || !strings.Contains(got, `level=WARN`) ||
			!strings.Contains(got, `keys="http.max_body ops.address"`) {
			t.Errorf("changes that need a restart: nodes = %v, want 1 and a warning with the keys\n%s", taken, got)
		}
	}
	for _, bad := range []string{"[[node]]", "x = 1", "[log]\nlevel = \"loud\"",
		"[[node]]\nname = \"a\"\naddress = \"10.0.0.1:1\"", ""} {
		write(bad)
		before := taken
		if got := reload(); len(taken) != len(before) || !strings.Contains(got, "level=ERROR") ||
			level.Level() != slog.LevelInfo {
			t.Errorf("%q: nodes = %v, want the previous ones and an error\n%s", bad, taken, got)
		}
	}
	write(a + "[log]\nlevel = \"warn\"\n")
	refuse = errors.New("not now")
	if got := reload(); level.Level() != slog.LevelInfo || !strings.Contains(got, "not now") {
		t.Errorf("refused nodes: level = %s, want INFO and the reason\n%s", level, got)
	}
}
