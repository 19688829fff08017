package roles

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

// exampleConfig reads a file of examples/ as far as its values go: nothing of it is on this machine.
func exampleConfig(t *testing.T, r config.Role, name string) config.Config {
	t.Helper()
	file := filepath.Join("../../../examples", name)
	cfg, found := config.FromFile(r, file, getenv([]string{"HOME=/home/u"}...)).Inspect(false)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestExampleConfigs(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../examples/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	exampleConfig(t, config.RoleServe, "../deploy/packages/serve.toml")
	for _, file := range files {
		name := filepath.Base(file)
		role := config.Role(strings.TrimSuffix(name, ".toml"))
		if role == "store" {
			role = config.RoleStorage
		}
		exampleConfig(t, role, name)
	}
}

// The units start the examples, let them write what they write, and wait for as long as they take to end.
func TestExampleUnits(t *testing.T) {
	t.Parallel()
	for _, r := range []config.Role{config.RoleServe, config.RoleStorage, config.RoleGateway, config.RoleSearch,
		config.RoleMirror} {
		cfg := exampleConfig(t, r, string(r)+".toml")
		text, err := os.ReadFile("../../../deploy/systemd/packhorse-" + string(r) + ".service")
		if err != nil {
			t.Fatal(err)
		}
		value := func(key string) string {
			m := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindSubmatch(text)
			if m == nil {
				t.Fatalf("unit of %s: %s is missing, want it", r, key)
			}
			return string(m[1])
		}
		if want := "packhorse " + string(r) + " --config /etc/packhorse/" + string(r) +
			".toml"; value("ExecStart") != want {
			t.Errorf("%s: ExecStart=%s instead of %s", r, value("ExecStart"), want)
		}
		if state := "/var/lib/" + value("StateDirectory"); state != cfg.State {
			t.Errorf("%s: StateDirectory of the unit = %s, want that of the configuration: %s", r, state, cfg.State)
		}
		owns := r.OwnsRepositories()
		if owns && (value("ReadWritePaths") != cfg.Root || value("RequiresMountsFor") != cfg.Root) {
			t.Errorf("ReadWritePaths and RequiresMountsFor of the unit are other paths, want the root %s", cfg.Root)
		}
		if r == config.RoleServe {
			packaged := exampleConfig(t, r, "../deploy/packages/serve.toml")
			if packaged.Root != cfg.Root || packaged.State != cfg.State || packaged.Shutdown != cfg.Shutdown {
				t.Errorf("the package's root, state and shutdown = %s, %s, %v, want those of examples/serve.toml: %s, %s, %v",
					packaged.Root, packaged.State, packaged.Shutdown, cfg.Root, cfg.State, cfg.Shutdown)
			}
		}
		if owns && strings.Contains(string(text), "\nRestrictSUIDSGID=") {
			t.Error("the unit has RestrictSUIDSGID=, want not: git sets the group bit of shared directories")
		}
		stop, err := time.ParseDuration(value("TimeoutStopSec"))
		if err != nil || stop <= cfg.Shutdown.Delay.Duration+cfg.Shutdown.Grace.Duration+CloseLimit {
			t.Errorf("%s: TimeoutStopSec = %s (error %v), want more than the shutdown takes", r, value("TimeoutStopSec"), err)
		}
	}
}

// TestPackagedUnits checks that the scripts of packages name all units.
func TestPackagedUnits(t *testing.T) {
	t.Parallel()
	files, err := os.ReadDir("../../../deploy/systemd")
	if err != nil {
		t.Fatal(err)
	}
	var units, services []string
	for _, file := range files {
		units = append(units, file.Name())
		if strings.HasSuffix(file.Name(), ".service") {
			services = append(services, file.Name())
		}
	}
	name := regexp.MustCompile(`\bpackhorse[a-z-]*\.(service|socket)\b`)
	for script, want := range map[string][]string{"deb/postinst": units, "deb/prerm": units, "deb/postrm": units,
		"rpm/preun": units, "rpm/posttrans": services} {
		text, err := os.ReadFile(filepath.Join("../../../deploy/packages", script))
		if err != nil {
			t.Fatal(err)
		}
		got := name.FindAllString(string(text), -1)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("units in %s = %v, want those of deploy/systemd: %v", script, got, want)
		}
	}
}

// TestExampleStore checks that the drop-in of a storage node with a store fits its configuration.
func TestExampleStore(t *testing.T) {
	t.Parallel()
	cfg := exampleConfig(t, config.RoleStorage, "store.toml")
	text, err := os.ReadFile("../../../examples/packhorse-storage.service.d/store.conf")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nRequiresMountsFor=" + cfg.Root + "\n", "\nReadWritePaths=\n",
		"\nExecStart=\nExecStart=packhorse storage --config /etc/packhorse/store.toml\n",
		"\nCacheDirectory=" + strings.TrimPrefix(cfg.Root, "/var/cache/") + "\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("drop-in for a store has no line %q, want it for the root %s", want, cfg.Root)
		}
	}
}
