package roles

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

// TestDeployments checks the flags and configurations of the rendered Helm charts, the Compose file and the
// Containerfile.
func TestDeployments(t *testing.T) {
	t.Parallel()
	charts, err := filepath.Glob("../../../deploy/helm/tests/*.golden")
	if err != nil || len(charts) == 0 {
		t.Fatalf("rendered charts: got %v, %v, want some", charts, err)
	}
	flag := regexp.MustCompile(`(?m)^            - (--.*)$`)
	file := regexp.MustCompile(`(?ms)^  (mirror|serve)\.toml: \|\n(.*?)^---`)
	for _, name := range charts {
		text := readFile(t, name)
		path := filepath.Join(t.TempDir(), "packhorse.toml")
		match := file.FindStringSubmatch(text)
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(match[2], "\n    ", "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		role := config.Role(match[1])
		var flags []string
		for _, match := range flag.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(match[1], "--config=") {
				match[1] = "--config=" + path
			}
			flags = append(flags, match[1])
		}
		checkRoleFlags(t, name, role, flags)
	}
	command := regexp.MustCompile(`(?m)^(?:    command: |CMD )\["mirror", (.*)\]$`)
	for _, name := range []string{"../../../deploy/compose.yaml", "../../../Containerfile"} {
		match := command.FindStringSubmatch(readFile(t, name))
		if match == nil {
			t.Fatalf("%s has no command that begins with mirror, want one", name)
		}
		checkRoleFlags(t, name, config.RoleMirror, strings.Split(strings.ReplaceAll(match[1], `"`, ""), ", "))
	}
	nodes := regexp.MustCompile(`(?m)^    command: \["serve", (.*)\]\n    hostname: (\w+)$`)
	compose := readFile(t, "../../../deploy/compose-store.yaml")
	all := nodes.FindAllStringSubmatch(compose, -1)
	if len(all) != 3 {
		t.Fatalf("compose-store.yaml has %d nodes, want 3", len(all))
	}
	for _, match := range all {
		flags := strings.ReplaceAll(strings.ReplaceAll(match[1], `"`, ""), "/etc/packhorse/packhorse.toml",
			"../../../deploy/compose-store.toml")
		cfg := checkFlags(t, "compose-store.yaml", config.RoleServe, strings.Split(flags, ", "))
		if want := "/var/lib/packhorse/" + match[2]; cfg.Root != want || !cfg.Store.Enabled() {
			t.Errorf("root of the node %s = %s, store = %q, want %s and a store", match[2], cfg.Root, cfg.Store.URL, want)
		}
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

// checkRoleFlags checks flags of a role whose root is the default of the image or the chart.
func checkRoleFlags(t *testing.T, name string, role config.Role, flags []string) {
	t.Helper()
	if cfg, want := checkFlags(t, name, role, flags), "/var/lib/packhorse/"+string(role); cfg.Root != want {
		t.Errorf("%s: root = %q, want the directory on the volume, %s", name, cfg.Root, want)
	}
}

// checkFlags checks flags of a role as far as their values go.
func checkFlags(t *testing.T, name string, role config.Role, flags []string) config.Config {
	t.Helper()
	set := pflag.NewFlagSet(string(role), pflag.ContinueOnError)
	source := config.AddFlags(set, role, getenv("HOME=/var/lib/packhorse", "XDG_STATE_HOME=/var/lib"))
	if err := set.Parse(flags); err != nil {
		t.Fatalf("%s: flags %q: %v", name, flags, err)
	}
	cfg, found := source.Inspect(false)
	if err := found.Err(); err != nil {
		t.Errorf("%s: flags %q: %v", name, flags, err)
	}
	return cfg
}
