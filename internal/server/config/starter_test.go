package config

import (
	"regexp"
	"strings"
	"testing"
)

// TestStarter checks that the starter configuration loads as it is, and that the keys in comments have their defaults.
func TestStarter(t *testing.T) {
	t.Parallel()
	cfg, from, err := loadText(t, Starter)
	if err == nil {
		err = cfg.Check()
	}
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Root != "/srv/git" || !strings.HasPrefix(from["root"], "FILE:") {
		t.Errorf("got root %q from %s, want /srv/git from the file", cfg.Root, from["root"])
	}
	defaults := map[string]string{}
	for _, s := range Keys() {
		defaults[s.Key] = s.TOML()
	}
	keyLine := regexp.MustCompile(`^# ([a-z_]+) = (.*)$`)
	table, keys := "", 0
	for line := range strings.Lines(Starter) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "["); ok {
			table = strings.TrimSuffix(name, "]") + "."
			continue
		}
		if m := keyLine.FindStringSubmatch(line); m != nil {
			keys++
			if want, ok := defaults[table+m[1]]; !ok || want != m[2] {
				t.Errorf("%s%s: got %s in the comment, want the default %s", table, m[1], m[2], want)
			}
		} else if line != "" && line[0] != '#' {
			keys++
		}
	}
	if keys < 15 || keys > 22 {
		t.Errorf("got %d keys, want about 19", keys)
	}
}
