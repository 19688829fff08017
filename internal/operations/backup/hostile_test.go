package backup

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// The author of a backup can give all checksums, but not choose where its files go.
func TestHostileBackup(t *testing.T) {
	t.Parallel()
	victim := t.TempDir()
	const sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // of nothing
	link := record{Name: "out", Mode: fs.ModeSymlink, Target: victim}
	tests := map[string]struct {
		records []record
		change  func(m *manifest)
	}{
		"file below a link": {records: []record{link, {Name: "out/file", Sum: sum}}},
		"mode of a link":    {records: []record{link, {Name: "out/sub", Mode: fs.ModeDir | 0o777}}},
		"parent":            {records: []record{{Name: "../../../victim", Sum: sum}}},
		"unclean name":      {records: []record{{Name: "a/../b", Sum: sum}}},
		"unit below a link": {records: []record{link}, change: func(m *manifest) {
			m.Units["root/a.git/out/b.git"] = m.Units["root/b.git"]
		}},
		"unit beside the root": {change: func(m *manifest) { m.Units["root/../b.git"] = m.Units["root/b.git"] }},
		"network":              {change: func(m *manifest) { m.Units["root/a.git"] = unit{ID: "x", Network: "../x"} }},
		"network of a path":    {change: func(m *manifest) { m.Units["root/a.git"] = unit{ID: "x", Network: "b.git"} }},
		"part of a part":       {change: func(m *manifest) { m.Units["state/tokens/x"] = m.Units["root/b.git"] }},
		"name of another":      {change: func(m *manifest) { m.Units["state/x"] = m.Units["root/b.git"] }},
		"private directory":    {change: func(m *manifest) { m.Units["root/.packhorse"] = m.Units["root/b.git"] }},
		"link outside":         {change: func(m *manifest) { m.Links = map[string]string{"../out": victim} }},
		"link below a link": {records: []record{link}, change: func(m *manifest) {
			m.Links = map[string]string{"a.git/out/x": "/"}
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a.git", "b.git")
			w.backup()
			m, err := readManifest(w.dir)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(w.dir, "root/a.git", listName)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range test.records {
				line, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				text = append(append(text, line...), '\n')
				if r.Sum != "" {
					_ = os.MkdirAll(filepath.Dir(filepath.Join(w.dir, "root/a.git", r.Name)), 0o755)
					_ = os.WriteFile(filepath.Join(w.dir, "root/a.git", r.Name), nil, 0o644)
				}
			}
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			u := m.Units["root/a.git"]
			hash := sha256.Sum256(text)
			u.List = hex.EncodeToString(hash[:])
			m.Units["root/a.git"] = u
			if test.change != nil {
				test.change(m)
			}
			if text, err = json.Marshal(m); err == nil {
				err = os.WriteFile(filepath.Join(w.dir, manifestName), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			root := filepath.Join(t.TempDir(), "new")
			r, err := restore(t, RestoreOptions{Dir: w.dir, Root: root, State: filepath.Join(root, ".packhorse")})
			if err == nil && len(r.Problems) == 0 {
				t.Error("the backup was restored without a problem")
			}
			for _, dir := range []string{victim, filepath.Dir(root)} {
				entries, err := os.ReadDir(dir)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					if e.Name() != "new" {
						t.Errorf("the restore wrote %s", filepath.Join(dir, e.Name()))
					}
				}
			}
		})
	}
}
