package roles

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/internal/config"
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
	src := config.AddFlags(flags, role, Env{Environ: []string{"HOME=/home/git"}}.Getenv)
	if err := flags.Parse([]string{"--config", file}); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := src.Load()
	return cfg, err
}
