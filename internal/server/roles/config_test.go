package roles

import (
	"flag"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

var update = flag.Bool("update", false, "write the generated documentation anew")

// loadTextAs loads a configuration file with this text, as a role would.
func loadTextAs(t *testing.T, role config.Role, text string) (config.Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "packhorse.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	src := config.AddFlags(flags, role, getenv([]string{"HOME=/home/git"}...))
	if err := flags.Parse([]string{"--config", file}); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := src.Load()
	return cfg, err
}

// socketDir is a directory whose path is short enough for a socket.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ph")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// leave makes a socket file like that of a killed process.
func leave(t *testing.T, file string) {
	t.Helper()
	l, err := net.Listen("unix", file)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
}

// getenv looks variables up in environ.
func getenv(environ ...string) func(string) string {
	return func(name string) string {
		for _, e := range environ {
			if value, ok := strings.CutPrefix(e, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

// testDeps returns what parts are built from. The parts close with the test.
func testDeps(t testing.TB, role config.Role, cfg config.Config, log *slog.Logger, reg prometheus.Registerer) *deps {
	t.Helper()
	d, err := newDeps(role, cfg, log, reg, Process{Version: "test"}, &lifecycle{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.life.close(); err != nil {
			t.Errorf("close error = %v, want none", err)
		}
	})
	return d
}
