package roles

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/internal/config"
)

// TestDeployments checks the flags and configurations of the rendered Helm charts, the Compose file and the
// Containerfile.
func TestDeployments(t *testing.T) {
	t.Parallel()
	charts, err := filepath.Glob("../../deploy/helm/tests/*.golden")
	if err != nil || len(charts) == 0 {
		t.Fatalf("rendered charts: got %v, %v, want some", charts, err)
	}
	flag := regexp.MustCompile(`(?m)^            - (--.*)$`)
	file := regexp.MustCompile(`(?ms)^  mirror\.toml: \|\n(.*?)^---`)
	for _, name := range charts {
		text := readFile(t, name)
		path := filepath.Join(t.TempDir(), "mirror.toml")
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(file.FindStringSubmatch(text)[1], "\n    ", "\n")),
			0o600); err != nil {
			t.Fatal(err)
		}
		var flags []string
		for _, match := range flag.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(match[1], "--config=") {
				match[1] = "--config=" + path
			}
			flags = append(flags, match[1])
		}
		checkMirrorFlags(t, name, flags)
	}
	command := regexp.MustCompile(`(?m)^(?:    command: |CMD )\["mirror", (.*)\]$`)
	for _, name := range []string{"../../deploy/compose.yaml", "../../Containerfile"} {
		match := command.FindStringSubmatch(readFile(t, name))
		if match == nil {
			t.Fatalf("%s has no command that begins with mirror, want one", name)
		}
		checkMirrorFlags(t, name, strings.Split(strings.ReplaceAll(match[1], `"`, ""), ", "))
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkMirrorFlags checks flags of "packhorse mirror" as far as their values go.
func checkMirrorFlags(t *testing.T, name string, flags []string) {
	t.Helper()
	set := pflag.NewFlagSet("mirror", pflag.ContinueOnError)
	source := config.AddFlags(set, config.RoleMirror, getenv("HOME=/var/lib/packhorse", "XDG_STATE_HOME=/var/lib"))
	if err := set.Parse(flags); err != nil {
		t.Fatalf("%s: flags %q: %v", name, flags, err)
	}
	cfg, found := source.Inspect(false)
	if err := found.Err(); err != nil {
		t.Errorf("%s: flags %q: %v", name, flags, err)
	}
	if cfg.Root != "/var/lib/packhorse/mirror" {
		t.Errorf("%s: root = %q, want the directory on the volume", name, cfg.Root)
	}
}
